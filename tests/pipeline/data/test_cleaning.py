import unicodedata

import pytest
from datasets import Dataset

from pipeline.data.cleaning import clean, normalise
from pipeline.data.config import CleaningConfig

SAMPLES = [
    "plain",
    " two  blanks\tand a tab ",
    "no\u00a0break\u202fblank\u3000wide\u2028line\u2029paragraph\u0085next\r",
    "the\x00cat",
    "e\x00\u0301",
    "\ufeffmark\ufeff",
    "half \ud83d pair",
    "\u200b\u200d zero width \u00ad\u200b",
    "in\u00advisible hy\u200bphen",
    "می\u200cخواهم",
    "ന്\u200d",
    "\U0001f469\u200d\U0001f680 \u2764\ufe0f",
    "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    "ﬁ ½ … ２ ŉ",
    "\u200b",
    "\u3164 \u00ad",
]


@pytest.mark.parametrize("form", ["NFC", "NFKC", "none"])
@pytest.mark.parametrize("text", SAMPLES)
def test_normalising_twice_changes_nothing(text, form):
    assert normalise(normalise(text, form), form) == normalise(text, form)


def test_white_space_of_every_kind_becomes_one_blank_and_none_at_the_ends():
    assert normalise(SAMPLES[1]) == "two blanks and a tab"
    assert normalise(SAMPLES[2]) == "no break blank wide line paragraph next"


def test_control_characters_marks_and_halves_of_pairs_go():
    assert normalise("the\x00cat\x7f\ufeff") == "thecat"
    assert normalise("half \ud83d pair") == "half pair"


def test_joiners_and_emoji_keep_what_they_are_spelled_with():
    for text in SAMPLES[9:13]:
        assert normalise(text) == unicodedata.normalize("NFC", text)


def test_text_without_a_visible_character_is_empty():
    for text in ("", " ", "\u3000\u3000", "\u00a0", "\u200b", "\t", "\x00", "\u200d", "\u3164 \u00ad", "\u2060\ufe0f"):
        assert normalise(text) == ""
    assert normalise("...") == "..."


def test_composed_and_decomposed_letters_are_the_same_text():
    assert normalise("cafe\u0301") == normalise("café") == "café"
    assert normalise("cafe\u0301", "none") == "cafe\u0301"


def test_only_nfkc_rewrites_compatibility_characters():
    text = "wait… ½ ① m² ﬁ ２ ™"
    assert normalise(text) == normalise(text, "none") == text
    assert normalise(text, "NFKC") == "wait... 1⁄2 1 m2 fi 2 TM"


def cleaned(pairs, **settings):
    sources, targets = zip(*pairs, strict=True)
    blank = [""] * len(pairs)
    rows = Dataset.from_dict({"source": sources, "target": targets, "group": blank, "fault": blank})
    kept, report = clean(rows, CleaningConfig(**settings))
    return list(zip(kept["source"], kept["target"], strict=True)), report


def test_every_pair_is_kept_or_counted_under_one_rule():
    pairs = [
        ("\u3000", "leer"),
        ("a full sentence", " "),
        ("...", "..."),
        ("x" * 1001, "y" * 900),
        ("x" * 10, "y" * 71),
        ("  the last row ", "die letzte Zeile"),
        ("short", "y" * 49),
    ]
    kept, report = cleaned(pairs)
    assert kept == [("the last row", "die letzte Zeile"), ("short", "y" * 49)]
    assert report.dropped == {"empty": 2, "identical_sides": 1, "too_long": 1, "length_ratio": 1}
    assert report.dropped.total() + len(kept) == len(pairs)
    assert report.examples["empty"] == [("", "leer"), ("a full sentence", "")]


def test_removed_control_characters_are_told_and_counted():
    pairs = [("the\x00cat", "die Katze"), ("\x00", "leer"), ("a dog", "ein\ufeff Hund"), ("tab\t", "ein\r\n Tab")]
    with pytest.warns(UserWarning, match="control characters removed from 3 of 4 pairs"):
        kept, report = cleaned(pairs)
    assert kept == [("thecat", "die Katze"), ("a dog", "ein Hund"), ("tab", "ein Tab")]
    assert (report.with_controls, report.dropped) == (3, {"empty": 1})


def test_limits_are_the_settings():
    assert cleaned([("abc", "def")], max_characters=2)[1].dropped == {"too_long": 1}
    assert cleaned([("abc", "abcd")], max_length_ratio=1)[1].dropped == {"length_ratio": 1}
    assert cleaned([("abc", "abc")], drop_identical=False)[1].dropped == {}


def test_at_most_three_examples_are_kept():
    _, report = cleaned([(f"{i}", f"{i}") for i in range(9)])
    assert report.examples == {"identical_sides": [("0", "0"), ("1", "1"), ("2", "2")]}
    assert str(report) == "9 identical_sides"


def test_a_row_s_own_fault_drops_it():
    rows = Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"], "group": ["", ""], "fault": ["torn", ""]})
    kept, report = clean(rows, CleaningConfig())
    assert (kept["source"][:], dict(report.dropped)) == (["b"], {"torn": 1})
