import re

import pytest

from pipeline.data.advice import advise
from pipeline.data.report_page import report_page
from pipeline.data.text import SIDES
from tests.pipeline.data.reports import ENGLISH, GERMAN, changed, reported


def warned(report):
    return "\n".join(advise(report))


def test_only_what_is_not_as_usual_is_warned_of(usual):
    usual = changed(usual, "pairs.train", 200_000)
    usual = changed(usual, "vocabulary.coverage.both.below_10", 0)
    assert advise(changed(usual, "read.train", 200_000)) == []


@pytest.mark.parametrize(
    "path, value, sentence",
    [
        ("pairs.valid", 12, "valid has 12 pairs: scores on so few say little"),
        ("pairs.test", 0, "test has no pairs"),
        ("pairs.train", 300, "300 pairs to train on are few"),
        ("dropped", {"length_ratio": 90}, "30% of pairs dropped by length_ratio: are the files aligned"),
        ("dropped", {"length_ratio": 160}, "53% of the training pairs were dropped: is this the corpus"),
        ("repaired", {"mojibake": 60}, "mojibake was repaired in 20% of pairs: is the encoding right"),
        (
            "overlap",
            {"valid": 5, "test": 7},
            "held-out sentences overlap: 12 training pairs share a side .*drop_overlap drops them",
        ),
        ("vocabulary.coverage.both.below_10", 20, r"vocabulary: 2\d% of pieces occur less than 10 times"),
        ("tokens.test.target.unknown_share", 0.012, "1.2% of the tokens of test's targets are unknown: raise"),
        ("tokens.train.source.per_word", 4.0, "a source word takes 4.0 tokens"),
        ("statistics.train.target.characters.mean", 150.0, r"targets have \d\.\d times the characters of the other"),
        ("statistics.train.ratio.ten_percent", 0.1, "lengths of the sides hardly go together"),
        ("statistics.test.source.characters.mean", 300.0, r"test's sources have 300 characters on average, those"),
        ("statistics.train.source.words.median", 2.0, "half of the sources have 3 words at most"),
        ("statistics.train.source.capitals", 0.0, "sources hold hardly a capital"),
        (
            "statistics.train.target.languages",
            {"de": 0.88, "en": 0.12},
            "12% of targets look like en, not de: cleaning.min_language_probability=0.05 drops",
        ),
        (
            "statistics.train.target.languages",
            {"fr": 0.9, "de": 0.1},
            "look like fr, .*: is corpora.target_language right",
        ),
        ("statistics.valid.source.languages", {"de": 0.9, "en": 0.1}, "90% of valid's sources look like de, .*reverse"),
        ("statistics.train.source.signs.markup", 0.25, "25% of sources hold markup: cleaning.markup=strip"),
        ("statistics.train.source.signs.mojibake", 0.25, "25% of sources hold mojibake: cleaning.mojibake=repair"),
        ("statistics.test.target.signs.tokenised", 0.5, "50% of test's targets look tokenised"),
    ],
)
def test_what_is_not_as_usual_is_warned_of(usual, path, value, sentence):
    before = changed(usual, "pairs.train", 200_000) if path != "pairs.train" else changed(usual, path, 10**6)
    assert not re.search(sentence, warned(changed(before, "vocabulary.coverage.both.below_10", 0)))
    assert re.search(sentence, warned(changed(usual, path, value)))


def test_what_is_true_of_all_splits_is_said_once():
    markup = [f"<b>{text}</b>" for text in ENGLISH]
    assert warned(reported(markup, GERMAN)).count("hold markup") == 1


def test_one_bad_corpus_among_many_is_named(usual):
    parts = [
        {"name": "books", "read": 200, "pairs": 200, "dropped": {}, "repaired": {}},
        {"name": "crawled", "read": 100, "pairs": 20, "dropped": {"empty": 9, "length_ratio": 71}, "repaired": {}},
    ]
    assert "crawled: 80% of its pairs were dropped, most of them by length_ratio" in advise(usual | {"corpora": parts})


def test_what_a_corpus_looks_like_is_measured_by_its_own_languages(usual):
    of_corpora = [
        {"languages": {"source": ["en"], "target": [code]}, **usual["statistics"]["train"]} for code in ("de", "fr")
    ]
    parts = [usual["corpora"][0] | {"name": name} for name in ("a", "b")]
    codes = {"source": ["en"], "target": ["de", "fr"]}
    warnings = warned(usual | {"corpora": parts, "of_corpora": of_corpora, "languages": codes})
    assert "of b's targets look like de, not fr: is corpora.target_language right" in warnings
    assert warnings.count("look like") == 1


@pytest.mark.filterwarnings("ignore:tokenizer.vocab_size")
def test_a_corpus_without_digits_is_told():
    assert "no digit occurs in what is trained on" in warned(reported(["in the beginning"] * 9, ["am Anfang"] * 9))
    assert "no digit" not in warned(reported(["in 1999"] * 9, ["im Anfang"] * 9))


def test_a_few_small_letters_among_others_do_not_make_lower_case():
    chinese = [f"第{number}个文件 file 在这里。" for number in range(300)]
    assert "hold hardly a capital" not in warned(reported(chinese, ENGLISH, ("zh", "en")))


def test_twice_the_characters_are_usual_between_scripts():
    chinese = ["老房子站在河边。" + "很好" * (number % 5) for number in range(300)]
    assert "times the characters" not in warned(reported(chinese, ENGLISH, ("zh", "en")))


def test_sides_that_are_exchanged_are_noticed():
    warnings = warned(reported(GERMAN, ENGLISH))
    assert "of sources look like de, not en: corpora.reverse exchanges the sides" in warnings
    assert "of targets look like en, not de: corpora.reverse exchanges the sides" in warnings


def test_a_language_that_cannot_be_told_is_not_warned_of():
    assert "look like" not in warned(reported(ENGLISH, GERMAN, ("tlh", "x-elvish")))


def test_every_language_of_several_is_expected(usual):
    mixed = changed(usual, "statistics.train.target.languages", {"de": 0.6, "fr": 0.4})
    assert "40% of targets look like fr, not de" in warned(mixed)
    assert "look like" not in warned(changed(mixed, "languages.target", ["de", "fr"]))
    assert "lang=" not in re.sub(
        '(?s)^.*<html lang="en">', "", report_page(changed(mixed, "languages", {side: ["de", "fr"] for side in SIDES}))
    )
