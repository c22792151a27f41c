"""The record of a run: ``metrics.csv`` and TensorBoard's events in ``runs/X/logs``, and ``runs/X/curves.png``.

A row belongs to one update and holds what is known there. A resumed run first drops the rows after the update it goes
on from, so that the record reads as if there had been no break.
"""

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from pipeline.checkpoint import written_whole

COLUMNS = {
    "step": "updates so far",
    "epoch": "passes over the data so far",
    "minutes": "training time, without validation",
    "loss": "label-smoothed loss in nats per target token, mean since the last row",
    "learning_rate": "of the last update",
    "gradient_norm": "before clipping, mean since the last row",
    "source_tokens_per_second": "real tokens on all devices",
    "target_tokens_per_second": "likewise",
    "waiting": "share of the training time spent waiting for data",
    "padding": "share of padding in the batches, both sides",
    "valid_loss": "label-smoothed loss in nats per target token of the validation data",
    "valid_perplexity": "exp of the plain negative log-likelihood per target token",
    "bleu": "of the greedy translations of trainer.validation_sentences pairs; the mean of several directions",
    "chrf": "likewise",
}


class RunLog:
    """Opens the record in ``folder`` to go on after update ``step``; ``columns`` are more than those of ``COLUMNS``."""

    def __init__(self, folder: Path, step: int, columns: Sequence[str] = ()):
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.csv"
        self.columns = [*COLUMNS, *columns]
        self.rows = [row for row in read_rows(self.path) if row["step"] <= step]
        with written_whole(self.path) as new, open(new, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        self.tensorboard = SummaryWriter(folder, purge_step=step + 1)

    def add(self, row: dict[str, float]) -> None:
        """Append the row of ``row["step"]``."""
        row = {name: value if name == "step" else float(f"{value:.8g}") for name, value in row.items()}
        self.rows.append(row)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)
        for name, value in row.items():
            if name != "step":
                self.tensorboard.add_scalar(name, value, row["step"])
        self.tensorboard.flush()

    def draw(self) -> None:
        """Draw ``curves.png`` anew."""
        draw_curves(self.rows, self.path.parents[1] / "curves.png")


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of ``metrics.csv``, each with the columns it has values for; a row cut off by a kill is left out."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]
    return [
        {name: float(value) if name != "step" else int(value) for name, value in row.items() if value} for row in rows
    ]


def draw_curves(rows: list[dict[str, float]], path: Path) -> None:
    """Loss, BLEU, learning rate and speed over the updates, if matplotlib is there (``pip install .[plots]``)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        warnings.warn(f"no {path.name}: matplotlib is not installed (pip install 'dragoman[plots]')", stacklevel=2)
        return
    panels = {
        "loss (nats per token)": ["loss", "valid_loss"],
        "BLEU": ["bleu"],
        "learning rate": ["learning_rate"],
        "target tokens per second": ["target_tokens_per_second"],
    }
    figure = Figure(figsize=(10, 7))
    figure.subplots_adjust(left=0.08, right=0.97, top=0.95, bottom=0.08, hspace=0.35)
    for axes, (title, names) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for name in names:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axes.plot(
                *zip(*points, strict=True) if points else ([], []), marker="." if len(points) < 40 else "", label=name
            )
        axes.set(title=title, xlabel="updates")
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend()
    with written_whole(path) as new:
        figure.savefig(new, format="png")
