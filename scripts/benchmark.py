"""python scripts/benchmark.py train|accuracy --config configs/X.yaml [--shapes tiny base big]"""

from pipeline.cli import main
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


if __name__ == "__main__":
    main({"train": train, "accuracy": accuracy})
