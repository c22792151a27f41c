"""python scripts/measure.py --model runs/X [--report F]"""

from pathlib import Path

from pipeline.cli import main


def measure(model: str, report: str = "") -> None:
    """What a trained run costs: time and memory to train, time to translate its test set, parameters.

    Args:
        model: The run folder.
        report: File for the figures in JSON; by default measure.json in the run folder.
    """
    from pipeline.benchmarks.measurement import write_measurement  # slow to import: not for --help

    path = Path(report or Path(model) / "measure.json")
    write_measurement(Path(model), path)
    print(path.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main(measure)
