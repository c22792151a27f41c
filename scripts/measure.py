"""python scripts/measure.py --model runs/X [--report F]"""

from pathlib import Path

from command_line import main

from pipeline.benchmarks.report import require_name
from pipeline.config import require


def measure(model: str, report: str = "") -> None:
    """What a trained run costs: time and memory to train, time to translate its test set, parameters.

    Args:
        model: The run folder.
        report: File for the figures, .json; by default measure.json in the run folder.
    """
    run = Path(model)
    require(
        (run / "config.yaml").is_file() and (run / "checkpoints").is_dir(),
        f"--model={model}: no run there: give the folder that scripts/train.py wrote (runs/NAME)",
    )
    require((run / "model").is_dir(), f"--model={model}: this run has no model yet: train on, then measure")
    require_name("report", report, (".json",))
    from pipeline.benchmarks.measurement import write_measurement  # slow to import: not for --help

    path = Path(report or run / "measure.json")
    write_measurement(run, path)
    print(path.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main(measure)
