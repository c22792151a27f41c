"""Figures for ``--plot``. Whether one can be drawn is known before the measuring; lines are named where they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Told apart by all kinds of colour vision (Okabe and Ito, 2008); without their yellow, which is too pale for lines.
COLOURS = ["#000000", "#E69F00", "#D55E00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7"]
MARKERS = "osD^vPX"
FORMATS = (".png", ".svg", ".pdf")


def blank_figure(path: str, width: float, height: float) -> Figure:
    """A figure, in inches, to be saved at ``path``.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(f"--plot {path} needs matplotlib: pip install 'dragoman[plots]'") from error
    return Figure(figsize=(width, height), dpi=160)


def panel(axes: Axes, title: str, x_label: str, ticks: list[int]) -> None:
    """Clean logarithmic axes with a tick at every measured point."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(x_label)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def line(axes: Axes, points: list[tuple[float, float]], number: int, label: str) -> None:
    """A line in the colour and with the marker of its ``number``."""
    style = dict(color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)])
    axes.plot(*zip(*points, strict=True), **style, markersize=4, linewidth=1.5, label=label)


def powers(axes: Axes) -> None:
    """Dashed lines for comparison: n beneath all lines, n² above where they begin."""
    points = [point for line in axes.lines for point in line.get_xydata()]
    xs = sorted({x for x, _ in points})
    linear = min(y / x for x, y in points) / 2
    quadratic = max(y for x, y in points if x == xs[0]) / xs[0] ** 2 * 2
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(bottom, linear * xs[0]), top)
    a_third_in = xs[0] ** (2 / 3) * xs[-1] ** (1 / 3)
    for factor, power, text, above in ((linear, 1, "$n$", -9), (quadratic, 2, "$n^2$", 9)):
        ends = [factor * x**power for x in (xs[0], xs[-1])]
        axes.plot([xs[0], xs[-1]], ends, color="#888888", linestyle=(0, (4, 3)), linewidth=0.9, zorder=1)
        at = (a_third_in, factor * a_third_in**power)
        axes.annotate(text, at, (-above, above), textcoords="offset points", color="#666666", ha="center", va="center")


def name_lines(axes: Axes, gap: float = 0.055) -> None:
    """The label of every labelled line at the right of ``axes``, tied to the line's end, at least ``gap`` apart."""
    axes.autoscale_view()
    to_fraction = axes.transData + axes.transAxes.inverted()
    lines = [line for line in axes.lines if not line.get_label().startswith("_")]
    ends = {line: to_fraction.transform(line.get_xydata()[-1]) for line in lines}
    lines.sort(key=lambda line: ends[line][1])
    heights = spread([ends[line][1] for line in lines], gap)
    for line, height in zip(lines, heights, strict=True):
        axes.annotate(
            line.get_label(),
            xy=ends[line],
            xytext=(1.06, height),
            xycoords="axes fraction",
            verticalalignment="center",
            color=line.get_color(),
            arrowprops=dict(arrowstyle="-", color=line.get_color(), linewidth=0.6, alpha=0.6, shrinkA=2, shrinkB=4),
            annotation_clip=False,
        )


def spread(heights: list[float], gap: float) -> list[float]:
    """Ascending ``heights``, moved as little as keeps them ``gap`` apart and, where they fit, below 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    ceiling = 1.0
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed
