"""The report of a prepared corpus as one HTML page, which needs no network, no server and no script."""

import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np

from pipeline.data.advice import has_words
from pipeline.data.corpora import SPLITS
from pipeline.data.report import SIDES
from pipeline.data.rules import RULES
from pipeline.data.statistics import LENGTHS, RATIOS

TEMPLATE = Path(__file__).with_suffix(".html")

WIDTH, HEIGHT = 360, 120
"""Of a chart's area, in the units of its own drawing."""

MEANINGS = {name: rule.__doc__.splitlines()[0].replace("``", "") for name, rule in RULES.items()} | {
    "duplicate": "The very same pair has been read before.",
    "duplicate_source": "The source has been read before.",
    "duplicate_target": "The target has been read before.",
    "near_duplicate": "A pair almost like it has been read before.",
    "overlap": "A side also stands in valid or test.",
    "near_overlap": "A side is almost like one in valid or test.",
}


def write_report_page(report: dict[str, Any], path: str | Path) -> None:
    """Write the page of a report as ``report.describe`` and ``advice.advise`` have completed it."""
    Path(path).write_text(report_page(report), encoding="utf-8")


def report_page(report: dict[str, Any]) -> str:
    """The page as text; whatever comes from the corpus stays text in it."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {
        "number": lambda number: f"{number:,.0f}",
        "share": percent,
        "visible": visible,
        "code_point": lambda character: f"U+{ord(character):04X}",
        "character_name": lambda character: unicodedata.name(character, "").lower(),
    }
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        report=report,
        SPLITS=SPLITS,
        SIDES=SIDES,
        meanings=MEANINGS,
        has_words={side: has_words(report, side) for side in SIDES},
        lengths_chart=lambda kind, side: lengths_chart(
            {name: report["tokens" if kind == "lengths" else "statistics"][name][side][kind] for name in SPLITS}
        ),
        ratio_chart=ratio_chart({name: report["statistics"][name]["ratio"] for name in SPLITS}),
        rank_chart=rank_chart,
    )


def percent(share: float) -> str:
    """In two or three figures; all and nothing are only what is exactly so."""
    if share in (0, 1):
        return f"{share:.0%}"
    if min(share, 1 - share) < 0.0001:
        return "<0.01%" if share < 0.5 else ">99.99%"
    return f"{share:.2%}" if min(share, 1 - share) < 0.01 else f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def visible(text: str) -> str:
    """A character or a piece that can be seen where it stands alone: marks on a dotted circle, what is invisible by
    its code."""
    codes = (
        f"U+{ord(character):04X}" if unicodedata.category(character)[0] == "C" else character for character in text
    )
    return "◌" * unicodedata.category(text[0]).startswith("M") + "".join(codes)


class Chart(NamedTuple):
    """Outlines as SVG paths, by what they show, and the horizontal axis."""

    paths: dict[str, str]
    ticks: list[tuple[float, str]]
    """Where, and what is written there."""


def lengths_chart(histograms: dict[str, dict[str, Any]]) -> Chart:
    """Bars of equal width, thirty or less, up to what nearly all of the first histogram's lengths do not exceed."""
    counts = {name: _counts(histogram, len(LENGTHS)) for name, histogram in histograms.items()}
    first = next(iter(counts.values())).cumsum()
    most = LENGTHS[np.searchsorted(first, 0.99 * first[-1])]
    width = next(step for step in _round_numbers() if most / step <= 30)
    begins = np.arange(0, most + width, width)
    ends = np.append(begins, begins[-1] + width)
    shares = {}
    for name, some in counts.items():
        below = np.concatenate([[0], some.cumsum()])
        edges = np.append(LENGTHS, 2 * LENGTHS[-1])
        shares[name] = np.diff(np.interp(ends, edges, below)) / max(1, below[-1])
    step = next(step for step in _round_numbers() if ends[-1] / step <= 7)
    ticks = [(value / ends[-1] * WIDTH, f"{value:,.0f}") for value in np.arange(0, ends[-1], step)]
    return Chart(_outlines(shares), ticks)


def ratio_chart(histograms: dict[str, dict[str, Any]]) -> Chart:
    """Bars on a logarithmic axis with 1 in its middle."""
    counts = {name: _counts(histogram, len(RATIOS)) for name, histogram in histograms.items()}
    middle = len(RATIOS) // 2
    first = next(iter(counts.values()))
    reach = max(16, *(abs(bin - middle) for bin in np.flatnonzero(first > first.sum() / 200).tolist()))
    bins = slice(middle - reach, middle + reach + 1)
    shares = {name: some[bins] / max(1, some.sum()) for name, some in counts.items()}
    ticks = [
        ((8 * doublings + reach + 0.5) / (2 * reach + 1) * WIDTH, text)
        for doublings, text in zip(range(-4, 5), "1:16 1:8 1:4 1:2 1 2:1 4:1 8:1 16:1".split(), strict=True)
        if abs(8 * doublings) <= reach
    ]
    return Chart(_outlines(shares), ticks)


def rank_chart(by_rank: list[list[int]]) -> Chart:
    """How often pieces occur, by rank, on two logarithmic axes."""
    ranks, counts = np.log10(np.maximum(1, np.array(by_rank, dtype=float))).T
    x, y = ranks / max(1e-9, ranks[-1]) * WIDTH, HEIGHT * (1 - counts / max(1e-9, counts[0]))
    path = "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in zip(x, y, strict=True))
    ticks = [(power / max(1e-9, ranks[-1]) * WIDTH, f"{10**power:,}") for power in range(int(ranks[-1]) + 1)]
    return Chart({"train": path}, ticks)


def _counts(histogram: dict[str, Any], bins: int) -> np.ndarray:
    counts = np.zeros(bins)
    counts[histogram["first_bin"] :][: len(histogram["counts"])] = histogram["counts"]
    return counts


def _outlines(shares: dict[str, np.ndarray]) -> dict[str, str]:
    """Steps as high as the shares, the highest of all as high as the chart."""
    highest = max(share.max() for share in shares.values()) or 1
    paths = {}
    for name, share in shares.items():
        width = WIDTH / len(share)
        steps = (f"V{HEIGHT * (1 - part / highest):.1f}H{(place + 1) * width:.1f}" for place, part in enumerate(share))
        paths[name] = f"M0 {HEIGHT}{''.join(steps)}V{HEIGHT}"
    return paths


def _round_numbers():
    return (digit * 10**power for power in range(9) for digit in (1, 2, 5))
