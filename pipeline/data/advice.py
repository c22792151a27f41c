"""What a colleague would say who read the report of a prepared corpus."""

from collections.abc import Iterator
from typing import Any

from pipeline.data.corpora import SPLITS
from pipeline.data.languages import has_blanks, known_as
from pipeline.data.report import SIDES

ADVICE = {
    "empty": "is a side not translated, or are the files not aligned?",
    "too_long": "are these documents rather than sentences?",
    "too_many_words": "are these documents rather than sentences?",
    "length_ratio": "are the files aligned?",
    "word_ratio": "are the files aligned?",
    "numbers_differ": "are the files aligned?",
    "links_differ": "are the files aligned?",
    "identical_sides": "is much of the corpus not translated?",
    "wrong_script": "are the languages right, and the right way round?",
    "wrong_language": "are the languages right, and the right way round?",
    "mojibake": "is the encoding right?",
    "markup": "cleaning.markup=strip keeps such pairs without their tags",
    "duplicate": "the corpus is much smaller than it looks",
    "duplicate_source": "the corpus is much smaller than it looks",
    "duplicate_target": "the corpus is much smaller than it looks",
    "near_duplicate": "the corpus is much smaller than it looks",
    "overlap": "are valid and test taken from the training data?",
    "near_overlap": "are valid and test taken from the training data?",
}
"""What to ask where a rule dropped much."""


def advise(report: dict[str, Any]) -> list[str]:
    """One sentence for each thing in a ``report`` that is not as usual."""
    return [
        *_of_what_was_dropped(report),
        *_of_held_out_data(report),
        *_of_text(report),
        *_of_lengths(report),
        *_of_pieces(report),
    ]


def _of_what_was_dropped(report: dict[str, Any]) -> Iterator[str]:
    read = max(1, report["read"]["train"])
    dropped = sum(report["dropped"].values())
    if dropped > read / 2:
        yield f"{dropped / read:.0%} of the training pairs were dropped: is this the corpus that was meant?"
    for rule, count in report["dropped"].items():
        if count > read / 10:
            yield f"{count / read:.0%} of pairs dropped by {rule}: {ADVICE.get(rule, 'look at its examples')}"
    parts = report["corpora"]
    for part in parts if len(parts) > 1 else []:
        lost = sum(part["dropped"].values())
        if lost > part["read"] / 2:
            rule = max(part["dropped"], key=part["dropped"].get)
            yield f"{part['name']}: {lost / part['read']:.0%} of its pairs were dropped, most of them by {rule}"
    for what, count in report["repaired"].items():
        if count > read / 20:
            yield f"{what} was repaired in {count / read:.0%} of pairs: {ADVICE.get(what, 'look at the corpus')}"


def _of_held_out_data(report: dict[str, Any]) -> Iterator[str]:
    for name in ("valid", "test"):
        pairs = report["pairs"][name]
        if pairs < 200:
            amount = f"{pairs} pair{'s' * (pairs != 1)}" if pairs else "no pairs"
            yield f"{name} has {amount}: scores on so few say little"
    shared = sum(report["overlap"].values())
    if shared > report["read"]["train"] / 100:
        yield (
            f"held-out sentences overlap: {shared:,} training pairs share a side with valid or test"
            f" ({shared / report['read']['train']:.0%})"
            + (", and were dropped" if report["dropped"].get("overlap") else ": cleaning.drop_overlap drops them")
        )
    train = report["statistics"]["train"]
    for name, side in _sides(report, "valid", "test"):
        usual, found = train[side]["characters"]["mean"], report["statistics"][name][side]["characters"]["mean"]
        if report["pairs"][name] >= 200 and not 0.5 < found / max(1, usual) < 2:
            yield (
                f"{name}'s {side}s have {found:.0f} characters on average, those trained on {usual:.0f}: "
                "scores will tell more of the difference than of the model"
            )


def _of_text(report: dict[str, Any]) -> Iterator[str]:
    """Of each training corpus, and of valid and test what is not true of these."""
    parts = zip(report["corpora"], report["of_corpora"], strict=False)  # none of a single one
    train = [(f"{part['name']}'s ", found) for part, found in parts] or [
        ("", report["statistics"]["train"] | {"languages": report["languages"]})
    ]
    said = set()
    for whose, found in train:
        for side in SIDES:
            for what, sentence in _of_side(f"{whose}{side}s", side, found[side], found["languages"]):
                said.add((side, what))
                yield sentence
    for name, side in _sides(report, "valid", "test"):
        found = report["statistics"][name][side]
        for what, sentence in _of_side(f"{name}'s {side}s", side, found, report["languages"]):
            if (side, what) not in said:
                yield sentence


def _of_side(
    whose: str, side: str, found: dict[str, Any], languages: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """What there is to say, with a name for it."""
    expected, other = (_told_apart(languages[name]) for name in (side, SIDES[side == "source"]))
    for language, share in found["languages"].items() if expected else ():
        if language not in expected and share > (0.05 if language in other else 0.2):
            if share <= 0.5:
                remedy = "cleaning.min_language_probability=0.05 drops such pairs, and 0.3% of others"
            elif language in other:
                remedy = "corpora.reverse exchanges the sides"
            else:
                remedy = f"is corpora.{side}_language right?"
            yield language, f"{share:.0%} of {whose} look like {language}, not {' or '.join(languages[side])}: {remedy}"
    for sign, much, sentence in (
        ("tokenised", 0.2, "look tokenised: detokenise them, or translations will have blanks before marks as well"),
        ("markup", 0.02, "hold markup: cleaning.markup=strip takes it out"),
        ("mojibake", 0.02, "hold mojibake: cleaning.mojibake=repair mends it"),
    ):
        if found["signs"][sign] > much:
            yield sign, f"{found['signs'][sign]:.0%} of {whose} {sentence}"
    if _main_script(found) in ("Latin", "Cyrillic", "Greek") and found["capitals"] < 0.001:
        yield "capitals", f"{whose} hold hardly a capital: what learns from text in lower case writes such"


def _of_lengths(report: dict[str, Any]) -> Iterator[str]:
    pairs, train = report["pairs"]["train"], report["statistics"]["train"]
    if pairs < 10_000:
        yield f"{pairs:,} pairs to train on are few: a model begins to be of use with some 100,000"
    if not any("digits" in train[side]["scripts"] for side in SIDES):
        yield "no digit occurs in what is trained on: numbers in digits will be strange to the model"
    source, target = (train[side]["characters"]["mean"] for side in SIDES)
    short, long = sorted((source, target))
    if long > 2 * short and not {"Han", "Hiragana", "Hangul"} & {_main_script(train[side]) for side in SIDES}:
        yield (
            f"{SIDES[target > source]}s have {long / max(1, short):.1f} times the characters of the other side: "
            "are the files aligned?"
        )
    ratio = train["ratio"]
    if ratio["ninety_percent"] > 5 * max(ratio["ten_percent"], 0.01):
        yield (
            f"lengths of the sides hardly go together (target to source below {ratio['ten_percent']:.1f} in a tenth of "
            f"pairs, above {ratio['ninety_percent']:.1f} in another): are the files aligned?"
        )
    for side in SIDES:
        if has_words(report, side) and train[side]["words"]["median"] <= 3:
            yield f"half of the {side}s have 3 words at most: a model will not learn whole sentences from them"


def _of_pieces(report: dict[str, Any]) -> Iterator[str]:
    for whose, vocabulary in report["vocabulary"]["coverage"].items():
        rare, pieces = vocabulary["below_10"], max(1, vocabulary["pieces"])
        if rare > pieces / 5:
            yield (
                f"{'' if whose == 'both' else whose + ' '}vocabulary: {rare / pieces:.0%} of pieces occur less than 10 "
                "times: a smaller tokenizer.vocab_size would be learned better"
            )
    for side in SIDES:
        unknown, name = max((report["tokens"][name][side]["unknown_share"], name) for name in SPLITS)
        if unknown > 0.001:
            yield (
                f"{unknown:.1%} of the tokens of {name}'s {side}s are unknown: raise tokenizer.character_coverage, or "
                "set tokenizer.byte_fallback"
            )
        each = report["tokens"]["train"][side]["per_word"]
        if each > 3 and has_words(report, side):
            yield f"a {side} word takes {each:.1f} tokens: is the vocabulary too small, or of other text?"


def _sides(report: dict[str, Any], *names: str) -> Iterator[tuple[str, str]]:
    return ((name, side) for name in names if report["pairs"][name] for side in SIDES)


def has_words(report: dict[str, Any], side: str) -> bool:
    """Whether all languages of a side are written with blanks."""
    return all(map(has_blanks, report["languages"][side]))


def _told_apart(languages: list[str]) -> set[str]:
    """The codes under which languages are recognised; none where one of them is not."""
    try:
        return set(map(known_as, languages))
    except ValueError:
        return set()


def _main_script(side: dict[str, Any]) -> str:
    """The one with most characters, which comes first."""
    return next(iter(side["scripts"]), "")
