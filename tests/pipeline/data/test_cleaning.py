import json
import pickle
import re
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data import config
from pipeline.data.cleaning import CONTROLS, ENDS, VISIBLE, Cleaner, Report, normalise
from pipeline.data.config import CleaningConfig
from pipeline.data.languages import has_blanks, scripts_of
from pipeline.data.repairs import REPAIRS, markup, mojibake
from pipeline.data.rules import RULES

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


@given(
    st.text(
        st.sampled_from("aÀe\u0301 \u00a0\u3000\t\x00\u0085\u200b\u00ad\ufeff\u3164\u115f\ufe0f¨ﬁ２\ud83d\U0001f469")
        | st.characters()
    ),
    st.sampled_from(["NFC", "NFKC", "none"]),
)
def test_plain_texts_are_normalised_as_all_others(text, form):
    slowly = CONTROLS.sub("", text)
    if form != "none":
        slowly = unicodedata.normalize(form, slowly)
    slowly = " ".join(slowly.split()).strip(ENDS)
    assert normalise(text, form) == (slowly if VISIBLE.search(slowly) else "")


def cleaned(pairs, languages=("en", "de"), **settings):
    sources, targets, *faults = zip(*pairs, strict=True)
    kept = Cleaner(CleaningConfig(**settings), *languages)(sources, targets, *faults)
    return list(zip(kept.sources, kept.targets, strict=True)), kept.report


def dropped(source, target, languages=("en", "de"), **settings):
    """The rule that drops the pair, if one does."""
    return next(iter(cleaned([(source, target)], languages, **settings)[1].dropped), None)


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


def test_what_is_kept_says_where_it_stood():
    kept = Cleaner(CleaningConfig(), "en", "de")(["a", "", "b", "c"], ["A", "B", "", "D"])
    assert (kept.sources, kept.targets, kept.rows) == (["a", "c"], ["A", "D"], [0, 3])


def test_removed_control_characters_are_counted():
    pairs = [("the\x00cat", "die Katze"), ("\x00", "leer"), ("a dog", "ein\ufeff Hund"), ("tab\t", "ein\r\n Tab")]
    kept, report = cleaned(pairs)
    assert kept == [("thecat", "die Katze"), ("a dog", "ein Hund"), ("tab", "ein Tab")]
    assert (report.with_controls, report.dropped) == (3, {"empty": 1})


def test_at_most_three_examples_are_kept():
    _, report = cleaned([(f"{i}", f"{i}") for i in range(9)])
    assert report.examples == {"identical_sides": [("0", "0"), ("1", "1"), ("2", "2")]}
    assert str(report) == "9 identical_sides"


def test_a_row_s_own_fault_drops_it_before_all_rules_and_repairs():
    kept, report = cleaned([("SchrÃ¶der", "", "torn"), ("b", "d", "")], mojibake="repair")
    assert (kept, report.dropped, report.repaired) == ([("b", "d")], {"torn": 1}, {})


def test_reports_add_up_to_the_report_of_all():
    pairs = [("x", "x"), ("", "leer"), ("a<br>b", "c\x00"), ("SchrÃ¶der", "y"), ("z", "z")] * 3
    total = Report()
    for begin in range(0, len(pairs), 4):
        total += cleaned(pairs[begin : begin + 4], markup="strip", mojibake="repair")[1]
    assert total == cleaned(pairs, markup="strip", mojibake="repair")[1]
    assert Report.from_dict(json.loads(json.dumps(total.as_dict()))) == total
    assert (total.dropped, total.repaired, total.with_controls) == (
        {"identical_sides": 6, "empty": 3},
        {"markup": 3, "mojibake": 3},
        3,
    )


def test_a_cleaner_travels():
    cleaner = Cleaner(CleaningConfig(max_repeated_words=1, max_foreign_letters=0.5), "en", "de")
    copy = pickle.loads(pickle.dumps(cleaner))
    pairs = ["no no", "Да", "yes"], ["nein", "ja", "ja"]
    assert copy(*pairs) == cleaner(*pairs)
    assert copy(*pairs).report.dropped == {"repeated_words": 1, "wrong_script": 1}


def test_a_rule_that_is_off_is_not_asked():
    off = CleaningConfig(drop_identical=False)
    assert [name for name, rule in RULES.items() if rule(off, ("en", "de"))] == ["empty", "too_long", "length_ratio"]


def test_each_rule_is_a_setting_s_first_word_and_each_setting_s_is_a_rule():
    text = re.search("class CleaningConfig.*?def __post_init__", Path(config.__file__).read_text("utf-8"), re.DOTALL)
    named = re.findall(r'^    """``(\w+)``: ', text[0], re.MULTILINE)
    later = {"duplicate", "duplicate_source", "duplicate_target", "near_duplicate", "overlap", "near_overlap"}
    assert {*named} - later == {*REPAIRS, *RULES} - {"empty"}


def test_the_overlay_for_the_web_asks_every_rule_and_keeps_ordinary_pairs():
    overlay = yaml.safe_load((Path(__file__).parents[3] / "configs" / "clean_web.yaml").read_text("utf-8"))
    settings = CleaningConfig(**overlay["cleaning"])
    assert all(rule(settings, ("en", "de")) for rule in RULES.values())
    assert all(getattr(settings, name) == {"mojibake": "repair", "markup": "strip"}[name] for name in REPAIRS)
    pair = (
        "On 3 May 1,200 people came &amp; saw www.example.org.",
        "Am 3. Mai kamen 1.200 Leute & sahen www.example.org.",
    )
    kept, report = cleaned([pair, ("Home", "Startseite"), (pair[1], pair[0])], **overlay["cleaning"])
    assert kept == [(pair[0].replace("&amp;", "&"), pair[1]), ("Home", "Startseite")]
    assert (report.dropped, report.repaired) == ({"wrong_language": 1}, {"markup": 2})


@pytest.mark.parametrize(
    ("rule", "settings", "kept", "broken"),
    [
        ("too_short", dict(min_characters=3), ("abc", "defg"), ("ab", "defg")),
        ("too_long", dict(max_characters=3), ("abc", "de"), ("ab", "defg")),
        ("too_many_words", dict(max_words=2), ("a b", "c"), ("a", "b c d")),
        ("length_ratio", dict(max_length_ratio=1.5), ("abcd", "abcdefghijk"), ("abcd", "abcdefghijkl")),
        ("word_ratio", dict(max_word_ratio=2), ("a", "a b c d e"), ("a b c d e f", "a")),
        ("identical_sides", dict(), ("same", "Same"), (" same", "same ")),
        ("few_letters", dict(min_letter_share=0.5), ("ab 12", "c"), ("ab", "c 12")),
        ("few_letters", dict(min_letter_share=1e-9), ("1 a", "2 b"), ("1 2 !", "b")),
        ("few_letters", dict(min_letter_share=1.0), ("हिन्दी में", "می\u200cخواهم"), ("हिन्दी २", "a")),
        ("repeated_characters", dict(max_repeated_characters=3), ("aaa ...", "b"), ("a", "b....")),
        ("repeated_words", dict(max_repeated_words=2), ("no no", "a b a b"), ("no no no", "a")),
        ("repeated_words", dict(max_repeated_words=2), ("a b c a b c", "c"), ("a", "x a b c a b c a b c")),
        ("numbers_differ", dict(numbers_match=True), ("1,000.5 men", "1.000,5 Mann"), ("12 men", "21 Mann")),
        ("numbers_differ", dict(numbers_match=True), ("10 000 men", "10,000 Mann"), ("a man", "1 Mann")),
        ("numbers_differ", dict(numbers_match=True), ("on 2010-01-02", "am 2.1.2010"), ("1 or 1", "eins oder 1")),
        ("numbers_differ", dict(numbers_match=True), ("in 2010 300 men", "2010 waren es ３００"), ("٣", "٤ Mann")),
        ("links_differ", dict(links_match=True), ("(see http://a.de/b)", "s. http://A.de/b/."), ("www.a.de", "b")),
        ("links_differ", dict(links_match=True), ("mail a@b.de", "Post an a@b.de."), ("a@b.de", "a@c.de")),
    ],
)
def test_a_limit_is_the_last_that_is_kept(rule, settings, kept, broken):
    assert dropped(*kept, **settings) is None
    assert dropped(*broken, **settings) == dropped(*broken[::-1], **settings) == rule


def test_numbers_of_any_length_are_compared():
    digits = "1234567890" * 1000
    assert dropped(digits, f"{digits} Mann", numbers_match=True, max_characters=20_000) is None


def test_word_rules_hold_where_words_are_written_with_blanks():
    settings = dict(max_words=3, max_word_ratio=1, max_repeated_words=1)
    assert dropped("one two", "一 二 三 四 四", ("en", "zh"), **settings) is None
    assert dropped("one two", "一 二 三 四 四", ("en", "ko"), **settings) == "too_many_words"
    assert dropped("one one", "一", ("en", "zh-TW"), **settings) == "repeated_words"


@pytest.mark.parametrize(
    ("language", "own", "foreign"),
    [
        ("en", "naïve Œuvre ½ ²", "Привет"),
        ("ru", "Привет, 42!", "hello"),
        ("sr", "Здраво zdravo", "γειά"),
        ("sr-Latn", "zdravo", "Здраво"),
        ("zho_Hans", "你好，「世界」", "안녕"),
        ("ja", "コーヒー を 飲みます、時々", "кофе"),
        ("ko", "안녕 大韓", "ありがとう"),
        ("hi", "नमस्ते दुनिया", "হ্যালো"),
        ("el", "γειά σου μ²", "hello"),
        ("ar", "مرحبا ٣", "שלום"),
    ],
)
def test_letters_of_other_scripts_are_foreign(language, own, foreign):
    settings = dict(max_foreign_letters=0.0, drop_identical=False)
    assert dropped(own, own, (language, language), **settings) is None
    assert dropped(foreign, own, (language, language), **settings) == "wrong_script"
    assert dropped(own, own + foreign, (language, language), **settings) == "wrong_script"


def test_the_share_of_foreign_letters_is_a_limit():
    assert dropped("das heißt да нет", "x", max_foreign_letters=0.38) == "wrong_script"
    assert dropped("das heißt да нет", "x", max_foreign_letters=0.39) is None
    assert dropped("да", "нет", ("tlh", "qya"), max_foreign_letters=0.0) is None  # whose scripts are not known


def test_codes_of_languages_are_known_in_all_their_forms():
    assert scripts_of("pt_BR") == scripts_of("EN") == ["Latin"]
    assert scripts_of("ja") == scripts_of("jpn_Jpan") == ["Han", "Hiragana", "Katakana"]
    assert (has_blanks("ko"), has_blanks("zh_CN"), has_blanks("th")) == (True, False, False)


GERMAN, ENGLISH = "Das ist ein ganz normaler deutscher Satz.", "This is quite an ordinary English sentence."


def test_sides_in_another_language_are_told():
    settings = dict(min_language_probability=0.5)
    assert dropped(ENGLISH, GERMAN, **settings) is None
    assert dropped(GERMAN, ENGLISH, **settings) == dropped(ENGLISH, ENGLISH + "!", **settings) == "wrong_language"
    assert dropped(ENGLISH, "Dette er en helt vanlig norsk setning.", ("en", "nb"), **settings) is None
    assert dropped(ENGLISH, "Il pleut.", **settings, max_length_ratio=9) is None  # too short to tell


def test_a_language_that_cannot_be_told_is_a_mistake():
    with pytest.raises(ValueError, match="min_language_probability.* xx .*set it to 0"):
        Cleaner(CleaningConfig(min_language_probability=0.5), "en", "xx")


def test_mojibake_is_put_right_or_dropped():
    pairs = [("Mr SchrÃ¶der", "Herr Schröder"), ("said â\x80\x9cno\x94", "größer: „Öl“"), ("plain", "schlicht")]
    kept, report = cleaned(pairs, mojibake="repair")
    assert kept == [("Mr Schröder", "Herr Schröder"), ("said “no”", "größer: „Öl“"), ("plain", "schlicht")]
    assert (report.repaired, report.dropped, report.with_controls) == ({"mojibake": 2}, {}, 0)
    kept, report = cleaned(pairs, mojibake="drop")
    assert (kept, report.dropped, report.repaired) == ([("plain", "schlicht")], {"mojibake": 2}, {})
    assert cleaned(pairs)[1] == Report(with_controls=1)


def test_markup_is_stripped_or_its_pair_dropped():
    pairs = [("<p>one &amp; two</p>", "eins &amp; zwei"), ("a < b > c", "x"), ("&nbsp;", "leer")]
    kept, report = cleaned(pairs, markup="strip")
    assert kept == [("one & two", "eins & zwei"), ("a < b > c", "x")]
    assert (report.repaired, report.dropped) == ({"markup": 2}, {"empty": 1})
    assert cleaned(pairs, markup="drop")[1].dropped == {"markup": 2}
    assert cleaned(pairs)[0][0] == pairs[0]


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("a <b>bo</b>ld word", "a bold word"),
        ("one<br/>two<BR>three", "one two three"),
        ('<a href="x">link</a>ed <g id="1"/>', "linked "),
        ("<!-- note -->text<?xml version='1'?>", " text "),
        ("<script type=x>var a = 1;</script>text", "  text"),
        ("&lt;i&gt;twice&lt;/i&gt; &amp;quot;escaped&amp;quot;", 'twice "escaped"'),
        ("&auml;&#228;&#xE4;&AMP;", "äää&"),
    ],
)
def test_tags_go_and_entities_become_characters(text, stripped):
    assert markup(text) == stripped


@pytest.mark.parametrize(
    "text",
    ["1 < 2 > 0", "I <3 you", "<joe@example.org>", "<https://example.org/a>", "?a=1&copy=2&lt", "AT&T; R&D", "<2de> a"],
)
def test_what_only_looks_like_markup_stays(text):
    assert markup(text) == text


@pytest.mark.parametrize(
    "text", ["<" * 100_000, "<a " * 50_000, "<!--" * 50_000, "&amp" * 50_000, "<a" + "a" * 100_000]
)
def test_broken_markup_takes_no_longer_than_its_length(text):
    assert markup(text) == text


@pytest.mark.parametrize("text", ["größer als ÄÖÜ", "«où êtes-vous ?»", "Привет", "naïve café", "中文", "plain"])
def test_text_that_was_read_rightly_is_no_mojibake(text):
    assert mojibake(text) == text
