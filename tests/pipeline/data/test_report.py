import copy
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from pipeline.data.advice import advise
from pipeline.data.config import TokenizerConfig
from pipeline.data.report import SIDES, describe, print_report, script_of
from pipeline.data.report_page import (
    WIDTH,
    lengths_chart,
    percent,
    rank_chart,
    ratio_chart,
    report_page,
    visible,
    write_report_page,
)
from pipeline.data.statistics import LENGTHS, RATIOS, Histogram, Statistics, TokenCounts
from pipeline.data.tokenizer import train_tokenizers

ENGLISH = [f"The {'old ' * (number % 5)}house number {number} stands by the river." for number in range(300)]
GERMAN = [f"Das {'alte ' * (number % 5)}Haus Nummer {number} steht an dem Fluss." for number in range(300)]

HOSTILE = [
    ("<script>alert(1)</script>", "</style><img src=x onerror=alert(2)>"),
    ("\"><b>' & &lt;", "{{ 7 * 7 }} {% raw %}"),
    ("שלום עולם \u202egnp", "中文，日本語。"),
    ("e\u0301 zero\u200bwidth", "-->]]> \u00a0"),
]


def reported(sources, targets, languages=("en", "de"), coverage=1.0, of_corpora=0, values=None):
    """The report of a corpus that keeps all of these for training, with the first 250 in valid and test as well."""
    splits = {"train": slice(None), "valid": slice(250), "test": slice(250)}
    tokenizers = train_tokenizers(sources, targets, TokenizerConfig(vocab_size=100, character_coverage=coverage))
    statistics, tokens = {}, {}
    for name, part in splits.items():
        texts = sources[part], targets[part]
        statistics[name] = Statistics.of(*texts)
        tokens[name] = {}
        for side, tokenizer, some in zip(SIDES, tokenizers, texts, strict=True):
            ids = pa.chunked_array([tokenizer.encode(some)], pa.list_(pa.int32()))
            tokens[name][side] = TokenCounts.of(ids, tokenizer.vocab_size)
    pairs = {name: len(sources[part]) for name, part in splits.items()}
    codes = {side: [code] for side, code in zip(SIDES, languages, strict=True)}
    report = {
        "fingerprint": "f00",
        "sources": [{"path": "train.en", "bytes": 12}],
        "read": dict(pairs),
        "pairs": pairs,
        "dropped": {},
        "examples": {},
        "repaired": {},
        "with_controls": 0,
        "overlap": {},
        "corpora": [{"name": "train.en", "read": len(sources), "pairs": len(sources), "dropped": {}, "repaired": {}}],
        "tokenizer": {"kind": "bpe", "vocab_size": [tokenizers.source.vocab_size], "unicode_form": "NFC"},
        **describe(statistics, tokens, tokenizers, codes, [(codes, statistics["train"])] * of_corpora),
    }
    report |= values or {}
    report["warnings"] = advise(report)
    return report


@pytest.fixture(scope="module")
def usual():
    return reported(ENGLISH, GERMAN)


def changed(report, path, value):
    """A report in which one value is another: ``changed(report, "pairs.test", 3)``."""
    report = copy.deepcopy(report)
    *outer, last = path.split(".")
    place = report
    for key in outer:
        place = place[key]
    place[last] = value
    return report


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
        ("statistics.train.target.languages", {"de": 0.88, "en": 0.12}, "12% of targets look like en, not de: cl"),
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


class Page(HTMLParser):
    """The elements of a page, which must be balanced, and the texts in them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def with_tag(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def hostile():
    sources, targets = (list(side) * 60 for side in zip(*HOSTILE, strict=True))
    values = {
        "dropped": {"length_ratio": 40, "empty": 0, "<i>fuzzy</i>": 2},
        "examples": {"length_ratio": HOSTILE[:2], "<i>fuzzy</i>": HOSTILE[2:]},
        "repaired": {"mojibake": 3},
        "with_controls": 4,
        "overlap": {"valid": 3},
        "sources": [{"path": "a<b>.txt", "bytes": 1}],
        "corpora": [
            {"name": name, "read": 100, "pairs": 80, "dropped": {"empty": 20}, "repaired": {}}
            for name in ("<u>", "b&c")
        ],
    }
    return reported(sources, targets, ("he", "zh"), of_corpora=2, values=values)


def test_the_page_is_balanced_and_needs_nothing_from_elsewhere(hostile):
    page = Page(report_page(hostile))
    assert not {"script", "link", "img", "iframe", "object", "form", "u", "i>fuzzy"} & {
        name for name, _ in page.elements
    }
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in ("src", "srcset", "action") for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in report_page(hostile) and "@import" not in report_page(hostile)


def test_text_of_the_corpus_stays_text(hostile):
    texts = Page(report_page(hostile)).texts
    for pair in HOSTILE:
        assert set(pair) <= set(texts)
    assert "<i>fuzzy</i>" in texts and "<u>" in texts and "a<b>.txt" in texts


def test_text_of_the_corpus_has_its_language_and_direction(hostile):
    paragraphs = [attributes for attributes in Page(report_page(hostile)).with_tag("p") if "lang" in attributes]
    assert len(paragraphs) > 20
    assert all(attributes["dir"] == "auto" for attributes in paragraphs)
    assert {attributes["lang"] for attributes in paragraphs} == {"he", "zh"}


def test_headings_go_down_one_step_at_a_time_and_links_lead_to_them(hostile):
    page = Page(report_page(hostile))
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch(r"h\d", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {attributes["href"][1:] for attributes in page.with_tag("a")} <= set(ids)
    assert ids[0] == "warnings"


def test_every_picture_says_what_it_shows(hostile):
    pictures = Page(report_page(hostile)).with_tag("svg")
    assert len(pictures) == 2 + 1 + 2 + 1 + 1  # characters, words (of which Chinese has none), tokens; ratio, ranks
    assert all(picture["role"] == "img" and re.search(r"\d", picture["aria-label"]) for picture in pictures)


def test_a_page_of_empty_splits_can_be_written(usual, tmp_path):
    report = copy.deepcopy(usual)
    nothing = Statistics.of([], [])
    for name in ("valid", "test"):
        report["pairs"][name] = 0
        for side in SIDES:
            for kind in ("characters", "words"):
                report["statistics"][name][side][kind] = getattr(getattr(nothing, side), kind).as_dict()
        report["statistics"][name]["ratio"] = nothing.ratio.as_dict()
    write_report_page(report, tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.with_tag("svg"), "train is still shown"


def numbers(path):
    return [float(number) for number in re.findall(r"[\d.]+", path)]


def test_a_chart_has_bars_of_equal_width_whose_area_is_the_share():
    histogram = Histogram.of(np.repeat([5, 40, 100], [10, 30, 60]), LENGTHS).as_dict()
    chart = lengths_chart({"train": histogram, "test": histogram})
    steps = re.findall(r"V([\d.]+)H([\d.]+)", chart.paths["train"])
    heights = [120 - float(height) for height, _ in steps]
    assert len(steps) <= 31 and float(steps[-1][1]) == pytest.approx(WIDTH, abs=0.1)
    assert max(heights) == 120
    assert sum(heights) == pytest.approx(120 / 60 * 100, rel=0.02)
    assert chart.paths["train"] == chart.paths["test"]
    assert [text for _, text in chart.ticks][:3] == ["0", "20", "40"]


def test_the_ratio_of_one_stands_in_the_middle():
    chart = ratio_chart({"train": Histogram.of(np.ones(10), RATIOS).as_dict()})
    assert {text: x for x, text in chart.ticks}["1"] == WIDTH / 2
    steps = re.findall(r"V([\d.]+)H([\d.]+)", chart.paths["train"])
    assert [height for height, _ in steps].index("0.0") == len(steps) // 2


@pytest.mark.parametrize("by_rank", [[[1, 0]], [[1, 7]], [[1, 100], [10, 10], [100, 1], [101, 0]]])
def test_a_curve_of_ranks_stays_in_its_picture(by_rank):
    assert all(0 <= number <= WIDTH for number in numbers(rank_chart(by_rank).paths["train"]))


def test_nearly_all_is_not_called_all():
    assert [percent(share) for share in (0, 1, 0.9998, 1 - 1e-6, 1e-6, 0.0004, 0.034, 0.5)] == [
        "0%",
        "100%",
        "99.98%",
        ">99.99%",
        "<0.01%",
        "0.04%",
        "3.4%",
        "50%",
    ]


def test_characters_that_cannot_be_seen_alone_are_shown():
    assert [visible(character) for character in ["a", "\u0301", "\u200b", "▁a\u0301\u200f"]] == [
        *["a", "◌\u0301", "U+200B", "▁a\u0301U+200F"],
    ]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def opened(page, path):
    """The document as Chromium has built it, and what it complains of."""
    path.write_text(page, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path}.profile"]
    command += ["--enable-logging=stderr", "--dump-dom", path.as_uri()]
    run = subprocess.run(command, capture_output=True, timeout=60)
    return run.stdout.decode(), [line for line in run.stderr.decode().splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_a_browser_shows_the_page_without_complaint(hostile, tmp_path):
    document, complaints = opened(report_page(hostile), tmp_path / "report.html")
    assert complaints == []
    for heading in ("What a colleague would say", "Overview", "Splits", "Lengths and ratios", "Tokens and vocabulary"):
        assert re.search(f"<h2>\\s*{heading}", document)
    assert "<script" not in document and "&lt;script&gt;alert(1)&lt;/script&gt;" in document


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium")
def test_no_script_would_run_in_the_page(usual, tmp_path):
    page = report_page(usual).replace("</main>", "<script>document.title = 'taken'</script></main>")
    document, complaints = opened(page, tmp_path / "report.html")
    assert "taken</title>" not in document
    assert any("Content Security Policy" in line for line in complaints)
