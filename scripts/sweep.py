"""Train, score and measure one model for each mechanism, all with the same data, batches and updates:

python scripts/sweep.py --config configs/multi30k_en_de.yaml --trainer.max_steps 1000 [--mechanisms baseline rotary]
"""

from pathlib import Path

from command_line import main

from pipeline.benchmarks.sweep import MECHANISMS, sweep
from pipeline.config import Configuration


def compare(
    configuration: Configuration,
    mechanisms: list[str] = list(MECHANISMS),
    folder: str = "runs/sweep",
    measure_again: bool = False,
    report: str = "",
) -> None:
    """Train, score and measure one model for each mechanism, all with the same data, batches and updates
    (trainer.max_steps; limits of time do not count). The same command again goes on where it stopped.

    Args:
        mechanisms: baseline, which is the configuration as it is, and names of overlays configs/with_NAME.yaml
        folder: where each has a run folder of its own; a table for a README is written there too, table.md
        measure_again: measure speed and memory anew, say because the machine was not idle
        report: file for the rows of the table, .csv or .json
    """
    sweep(configuration, mechanisms, Path(folder), measure_again, report, scripts=Path(__file__).parent)


if __name__ == "__main__":
    main(compare)
