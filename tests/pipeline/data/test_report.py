import pytest

from pipeline.data.report import print_report, script_of
from tests.pipeline.data.reports import ENGLISH, GERMAN, reported


def test_signs_of_text_that_is_not_plain_are_seen():
    spoilt = ["The house , it &apos;s old ."] * 150 + ["<b>Press &amp; hold</b> the key."] * 75 + ["SchrÃ¶der"] * 75
    signs = reported(spoilt, [f"{number} ok" for number in range(300)])["statistics"]["train"]["source"]["signs"]
    assert signs == {"tokenised": 0.5, "markup": 0.25, "mojibake": 0.25}
    signs = reported(ENGLISH, GERMAN)["statistics"]["train"]["target"]["signs"]
    assert set(signs.values()) == {0}


def test_coverage_counts_pieces_that_text_can_have():
    report = reported(ENGLISH, GERMAN)
    coverage = report["vocabulary"]["coverage"]["both"]
    assert coverage["pieces"] == 100 - 4  # without pad, unk, bos and eos, nor what fills up to a multiple of eight
    assert coverage["never"] <= coverage["below_10"] <= coverage["below_100"] <= coverage["pieces"]
    ranks, counts = zip(*coverage["by_rank"], strict=True)
    assert list(counts) == sorted(counts, reverse=True) and ranks[0] == 1 and ranks[-1] == coverage["pieces"]


def test_characters_without_a_piece_are_listed():
    report = reported([*ENGLISH, "Ω in the house"], [*GERMAN, "Ж im Haus"], coverage=0.99)
    assert report["vocabulary"]["unknown_characters"]["source"]["Ω"] == 1
    assert "Ж" in report["vocabulary"]["unknown_characters"]["target"]


@pytest.mark.parametrize(
    "character, script",
    [
        *[
            ("a", "Latin"),
            ("я", "Cyrillic"),
            ("中", "Han"),
            ("々", "Han"),
            ("ー", "Katakana"),
            ("Ａ", "Latin"),
            ("の", "Hiragana"),
            ("ש", "Hebrew"),
            ("\u0301", "accents"),
        ],
        *[("7", "digits"), ("٣", "digits"), ("。", "punctuation"), ("€", "symbols"), ("\u200d", "invisible")],
    ],
)
def test_a_character_belongs_to_a_script_or_a_class(character, script):
    assert script_of(character) == script


def test_the_report_is_printed_with_its_warnings(usual, capsys):
    print_report(usual)
    out, err = capsys.readouterr()
    assert out == ""
    assert "300 training pairs read, dropped: nothing" in err
    assert "look: 300 pairs to train on are few" in err
