"""Configuration in, run folder out: start a run, go on with one, or say that it is finished.

Imports torch and Lightning only when there is something to train, so that all else is said at once.
"""

import dataclasses
import sys
from pathlib import Path

from pipeline.cli import read_configuration
from pipeline.config import Configuration
from pipeline.training.ending import FINISHED, Standing

CHANGEABLE = (
    *(f"trainer.max_{limit}" for limit in ("steps", "epochs", "minutes")),
    *(f"trainer.{name}" for name in ("accelerator", "devices", "num_nodes", "accumulate_batches", "compile")),
    *(f"trainer.{name}" for name in ("validate_every", "patience", "checkpoint_every", "keep_last", "log_every")),
    "trainer.attention_pictures",
    "batching.num_workers",
    "preparation.",
    "search.",
    "output.",
)
"""What may differ when a run goes on (all options of a section that ends in a dot); all else makes another model."""


def fit(configuration: Configuration) -> Path:
    """Train, and return the run folder; called again, go on exactly where training stopped.

    Raises:
        ValueError: the run in ``output.run`` has options that cannot change any more, or training cannot go on.
        OSError: something cannot be read or written.
    """
    run = Path(configuration.output.run)
    if any((run / "checkpoints").glob("step-*.ckpt")):
        report_changes(read_configuration(run / "config.yaml"), configuration)
        if (run / FINISHED).exists() and (ending := Standing.read(run / FINISHED).ending(configuration.trainer)):
            say(f"{run} is finished: {ending}; the model is in {run / 'model'}. A larger limit trains on.")
            return run
    from pipeline.training.training import train

    train(configuration)
    return run


def report_changes(old: Configuration, new: Configuration) -> None:
    """Say which options changed; raise ``ValueError`` where one of them cannot."""
    before, after = flat(old), flat(new)
    for option, value in after.items():
        if value == before[option]:
            continue
        change = f"{option}={value}, but {old.output.run} was begun with {option}={before[option]}"
        if not option.startswith(CHANGEABLE):
            raise ValueError(f"{change}: go back to that, or choose another output.run")
        say(f"goes on with {option}={value} (was {before[option]})")


def flat(configuration: Configuration) -> dict[str, object]:
    """Option names with dots and their values."""
    sections = dataclasses.asdict(configuration)
    options = {"seed": sections.pop("seed")}
    return options | {f"{section}.{name}": v for section, fields in sections.items() for name, v in fields.items()}


def say(text: str) -> None:
    print(text, file=sys.stderr)
