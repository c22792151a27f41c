"""What the 1/√d_k of attention is for (Vaswani et al., 2017, section 3.2.1).

Of independent entries with variance 1, q · k has variance d_k. A softmax over scores that large gives all its weight to
one key, and its Jacobian diag(p) - p pᵀ, through which every gradient passes, vanishes.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from models.attention import attention_weights
from models.masks import Mask
from pipeline.benchmarks import plots
from pipeline.benchmarks.report import publish
from pipeline.checkpoint import written_whole
from pipeline.data.progress import progress
from pipeline.training.fit import say

WIDTHS = [4**i for i in range(7)]
NUM_KEYS = 64
NUM_QUERIES = 4096
QUERIES_AT_A_TIME = 256


def jacobian_norm(p: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows"]:
    """The Frobenius norm of diag(p) - p pᵀ: √(Σ p² - 2 Σ p³ + (Σ p²)²)."""
    squares = p.square().sum(dim=-1)
    # Rounding may take the sum just below zero where all weight is on one key.
    return (squares - 2 * p.pow(3).sum(dim=-1) + squares.square()).clamp_min(0).sqrt()


def saturation(d_k: int) -> dict[str, float]:
    """Means over random normal queries, each with ``NUM_KEYS`` random normal keys of its own."""
    scores, raw, scaled = [], [], []
    for _ in range(NUM_QUERIES // QUERIES_AT_A_TIME):
        q = torch.randn(QUERIES_AT_A_TIME, 1, 1, d_k)
        k = torch.randn(QUERIES_AT_A_TIME, 1, NUM_KEYS, d_k)
        scores.append(q @ k.transpose(-2, -1))
        raw.append(scores[-1].double().softmax(dim=-1))
        scaled.append(attention_weights(q, k, Mask()).double())
    score, raw, scaled = torch.cat(scores), torch.cat(raw), torch.cat(scaled)
    return {
        "d_k": d_k,
        "variance": score.var().item(),
        "variance_scaled": (score / d_k**0.5).var().item(),
        "largest_weight": raw.amax(dim=-1).mean().item(),
        "largest_weight_scaled": scaled.amax(dim=-1).mean().item(),
        "jacobian_norm": jacobian_norm(raw).mean().item(),
        "jacobian_norm_scaled": jacobian_norm(scaled).mean().item(),
    }


def demonstrate(report: str, plot: str) -> None:
    """Measure, print, write and draw."""
    figure = plots.blank_figure(plot, 12, 4.2) if plot else None
    torch.manual_seed(0)
    rows = []
    say(f"sampling {NUM_QUERIES} queries with {NUM_KEYS} keys each, at head widths {', '.join(map(str, WIDTHS))}")
    with progress("sampling", len(WIDTHS)) as advance:
        for d_k in WIDTHS:
            rows.append(saturation(d_k))
            advance(1)
    publish(rows, f"softmax over {NUM_KEYS} keys, with and without 1/√d_k; means over {NUM_QUERIES} queries,", report)
    if figure:
        draw(figure, rows)
        with written_whole(Path(plot)) as new:
            figure.savefig(new, format=Path(plot).suffix[1:])


def draw(figure, rows: list[dict[str, float]]) -> None:
    title = f"A softmax over {NUM_KEYS} keys, with and without $1/\\sqrt{{d_k}}$"
    figure.text(0.05, 0.92, title, fontsize=13, weight="bold")
    figure.subplots_adjust(left=0.05, right=0.91, top=0.8, bottom=0.14, wspace=0.6)
    panels = {"variance": "variance of a score", "largest_weight": "largest weight", "jacobian_norm": "Jacobian's norm"}
    for axes, (column, title) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        plots.panel(axes, title, "head width $d_k$", WIDTHS)
        axes.set_yscale("log" if column == "variance" else "linear")
        labels = {column: "$q \\cdot k$", f"{column}_scaled": "$q \\cdot k\\,/\\sqrt{d_k}$"}
        for i, (name, label) in enumerate(labels.items()):
            plots.line(axes, [(row["d_k"], row[name]) for row in rows], 2 + i, label)
        if column != "variance":
            axes.set_ylim(bottom=0)
        plots.name_lines(axes)
