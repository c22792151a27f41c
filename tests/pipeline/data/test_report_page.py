import copy
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

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
from pipeline.data.statistics import LENGTHS, RATIOS, Histogram, Statistics
from pipeline.data.text import SIDES
from tests.pipeline.data.reports import reported

HOSTILE = [
    ("<script>alert(1)</script>", "</style><img src=x onerror=alert(2)>"),
    ("\"><b>' & &lt;", "{{ 7 * 7 }} {% raw %}"),
    ("שלום עולם \u202egnp", "中文，日本語。"),
    ("e\u0301 zero\u200bwidth", "-->]]> \u00a0"),
]


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
