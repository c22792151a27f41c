"""The commands of ``scripts/benchmark.py``. Each imports what it measures when it runs: help is instant."""

# ruff: noqa: B006 (a default here is what --help shows)

from jsonargparse.typing import PositiveInt

from pipeline.config import Configuration


def train(
    configuration: Configuration,
    shapes: list[str] = ["config"],
    precisions: list[str] = ["32", "bf16"],
    compare_compiled: bool = False,
    against: list[str] = [],
    windows: int = 3,
    updates: int = 20,
    report: str = "",
):
    """Real tokens per second of training on the configuration's corpus; all combinations take turns.

    Args:
        shapes: config (the configuration's own), tiny, base, big
        precisions: 32, bf16
        compare_compiled: each with and without torch.compile, instead of as trainer.compile says
        against: baselines to measure beside it: torch (nn.Transformer), marian (Hugging Face's)
        windows: turns of each combination; medians are reported
        updates: in a turn, of one batch each
        report: file for the rows, .csv or .json
    """
    from pipeline.training import benchmark

    compiled = [False, True] if compare_compiled else [configuration.trainer.compile]
    rows = benchmark.throughput(configuration, shapes, precisions, compiled, against, windows, updates)
    benchmark.publish(rows, "training", report)


def accuracy(configuration: Configuration, report: str = ""):
    """Errors of loss and gradient against 64-bit floats, by attention kernel and precision; fails if they are large."""
    from pipeline.training import benchmark

    benchmark.publish(benchmark.accuracy(configuration), "errors", report)


def attention(
    lengths: list[PositiveInt] = [],
    d_model: int = 128,
    num_heads: int = 4,
    batch: int = 1,
    mechanisms: list[str] = ["recurrent", "convolutional", "plain", "fused", "window", "performer", "elu"],
    report: str = "",
    plot: str = "",
):
    """Time and memory of one layer, forward and backward, as the length grows; all mechanisms take turns.

    Args:
        lengths: positions; if none are given, from 64 by doubling to 8192, on a GPU to 65536
        d_model: width of the layers
        num_heads: attention heads; must divide d_model
        batch: sequences at a time
        mechanisms: recurrent, convolutional, and the attention kinds plain, fused, window, performer, elu
        report: file for the measurements, .csv or .json; their growth goes into X.growth.csv beside X.csv
        plot: file for the figure, .png, .svg or .pdf
    """
    from pipeline.benchmarks import growth

    growth.compare(lengths, d_model, num_heads, batch, mechanisms, report, plot)


def saturation(report: str = "", plot: str = ""):
    """What dividing the scores by the root of d_k is for: how their variance, and the softmax, go with d_k.

    Args:
        report: file for the rows, .csv or .json
        plot: file for the figure, .png, .svg or .pdf
    """
    from pipeline.benchmarks import saturation

    saturation.demonstrate(report, plot)
