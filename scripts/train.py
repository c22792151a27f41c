"""Train a model, or go on with one that was interrupted:

python scripts/train.py --config configs/X.yaml [--model.d_model 256 ...]
"""

from command_line import main

from pipeline.config import Configuration
from pipeline.training.fit import fit


def train(configuration: Configuration) -> None:
    """Train a translation model into the run folder output.run. The same command again goes on exactly where it
    stopped, and says so when there is nothing left to do."""
    fit(configuration)


if __name__ == "__main__":
    main(train)
