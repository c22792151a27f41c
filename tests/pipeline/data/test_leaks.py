"""Held-out sentences do not come back in training, in whatever disguise they were planted there."""

import unicodedata
from dataclasses import replace

import pytest

from pipeline.config import CleaningConfig, CorporaConfig
from pipeline.data.near import fold, similarity
from pipeline.data.preparation import prepare
from tests.pipeline.data.conftest import write_lines

HELD_OUT = [
    ("The old fisherman mended his nets before the storm came.", "Der alte Fischer flickte seine Netze vor dem Sturm."),
    (
        "Nobody in the village remembered when the bridge was built.",
        "Niemand im Dorf wusste, wann man die Brücke baute.",
    ),
    (
        "She keeps the letters of her grandmother in a wooden box.",
        "Sie bewahrt die Briefe ihrer Großmutter in einer Kiste.",
    ),
    (
        "Most of the passengers were asleep as the train stopped.",
        "Die meisten Fahrgäste schliefen, als der Zug anhielt.",
    ),
]
ORDINARY = [
    (
        "The baker opens his shop at six every morning of the week.",
        "Der Bäcker öffnet seinen Laden jeden Morgen um sechs.",
    ),
    ("The old woman mended her coat before the winter came.", "Die alte Frau flickte ihren Mantel vor dem Winter."),
    (
        "He has not written any letters to his brother since May.",
        "Seit Mai hat er seinem Bruder keine Briefe geschrieben.",
    ),
    (
        "Our train was late again, and so we missed the meeting.",
        "Unser Zug kam wieder zu spät, wir verpassten das Treffen.",
    ),
    (
        "A narrow path leads from the church down to the river.",
        "Ein schmaler Pfad führt von der Kirche hinab zum Fluss.",
    ),
    ("Yes.", "Ja."),
]


def full_width(text: str) -> str:
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else "\u3000" if c == " " else c for c in text)


def with_word(text: str, place: int, *words: str) -> str:
    """The text with other words in the place of one."""
    old = text.split()
    return " ".join([*old[:place], *words, *old[place + 1 :]])


DISGUISES = {
    "a copy": lambda source, target: (source, target),
    "capitals": lambda source, target: (source.upper(), target.upper()),
    "spacing": lambda source, target: (source.replace(" ", "\u00a0 "), f"\t{target.replace(' ', '  ')} "),
    "words run together": lambda source, target: (source.replace(" the ", "the "), target.replace(" ", "\u200b")),
    "punctuation": lambda source, target: (f"“{source[:-1]}” …", f"– {target[:-1].replace(',', ' –')}!"),
    "decomposed letters": lambda source, target: (source[:-1], unicodedata.normalize("NFD", target)),
    "full-width letters": lambda source, target: (full_width(source), full_width(target)),
    "exchanged sides": lambda source, target: (target, source),
    "another target": lambda source, target: (source, "Das ist die Übersetzung von etwas ganz anderem, und zwar lang."),
    "markup and entities": lambda source, target: (f"<p>{source.replace('e', '&#101;')}</p>", f"<b>{target}</b>"),
    "mojibake": lambda source, target: ("This translates something else.", target.encode().decode("latin-1")),
    "a word changed": lambda source, target: (with_word(source, 2, "daughter"), with_word(target, 3, "reparierte")),
    "a word added": lambda source, target: (
        with_word(source, 4, source.split()[4], "slowly"),
        with_word(target, 3, "hat", "nun"),
    ),
    "a word dropped": lambda source, target: (with_word(source, 3), with_word(target, 3)),
}


@pytest.fixture
def leaking(configuration, tmp_path):
    """Named files of held-out pairs, and training data of ordinary pairs and held-out ones in every disguise."""

    def write(name: str, pairs: list[tuple[str, str]]) -> list[str]:
        return [
            write_lines(tmp_path / f"{name}.{side}", list(lines)) for side, lines in enumerate(zip(*pairs, strict=True))
        ]

    planted = [disguise(*pair) for disguise in DISGUISES.values() for pair in HELD_OUT]
    files = dict(
        train=write("train", ORDINARY + planted), valid=write("valid", HELD_OUT[:2]), test=write("test", HELD_OUT[2:])
    )
    return replace(
        configuration,
        tokenizer=replace(configuration.tokenizer, vocab_size=100),
        corpora=CorporaConfig(**files),
        cleaning=CleaningConfig(markup="strip", mojibake="repair", max_length_ratio=9),
    )


def test_held_out_sentences_are_found_in_every_disguise(leaking):
    prepared = prepare(leaking)
    assert list(zip(prepared.train["source"], prepared.train["target"], strict=True)) == ORDINARY
    assert set(prepared.report["dropped"]) == {"duplicate", "overlap", "near_overlap"}
    assert sum(prepared.report["dropped"].values()) == len(DISGUISES) * len(HELD_OUT)


def test_only_changed_words_need_the_search_for_what_is_near(leaking):
    prepared = prepare(replace(leaking, cleaning=replace(leaking.cleaning, near_overlap=0)))
    changed = [DISGUISES[f"a word {what}"](*pair) for what in ("changed", "added", "dropped") for pair in HELD_OUT]
    assert list(zip(prepared.train["source"], prepared.train["target"], strict=True)) == ORDINARY + changed


def test_a_word_of_a_short_sentence_may_be_changed():
    """Where one word is a third of what is said, another makes another sentence: this is a limit."""
    assert similarity(fold("Close the door."), fold("Close the window.")) < CleaningConfig().near_overlap
