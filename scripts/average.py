"""Average the weights of a run's last checkpoints into a model folder:

python scripts/average.py --model runs/X --last 5 [--output F]
"""

import warnings
from pathlib import Path

from command_line import main


def average(model: str, last: int = 5, output: str = "") -> None:
    """Average the weights of a run's last checkpoints into a model folder.

    Args:
        model: The run folder.
        last: How many of its newest checkpoints.
        output: Model folder to write; by default average-N in the run folder.
    """
    from pipeline.checkpoint import average_checkpoints, checkpoints, save_model

    if last < 1:
        raise ValueError(f"--last={last} must be at least 1")
    found = checkpoints(model)
    if not found:
        raise ValueError(f"--model={model}: no checkpoints in {Path(model) / 'checkpoints'}; give a run folder")
    if len(found) < last:
        warnings.warn(
            f"--last={last}, but {model} has {len(found)} (trainer.keep_last): all are averaged", stacklevel=2
        )
    found = found[-last:]
    folder = Path(output or Path(model) / f"average-{len(found)}")
    averaged = average_checkpoints(found)
    save_model(folder, averaged.model, averaged.tokenizers, averaged.configuration, averaged.metrics)
    print(f"{folder}: the average of {', '.join(path.name for path in found)}")


if __name__ == "__main__":
    main(average)
