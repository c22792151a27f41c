"""Where training stands, and whether it is at its end. Imports no torch: a finished run says so at once."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import TrainerConfig

FINISHED = "finished.json"
"""Written into the run folder at the very end: the standing the run ended with."""


@dataclass
class Standing:
    """What training has behind it, over all restarts."""

    step: int = 0
    """Updates."""

    epochs: int = 0
    """Completed passes over the data."""

    seconds: float = 0.0
    """Training time: updates and the wait for their data, without validation, checkpoints and start."""

    waited: int = 0
    """Validations since the best one."""

    best_step: int = 0
    """Update of the best validation; 0 before the first."""

    best_scores: dict[str, float] = field(default_factory=dict)
    """Its scores, by the columns of the log."""

    def ending(self, limits: TrainerConfig) -> str:
        """Why training is over, or nothing."""
        if limits.max_steps and self.step >= limits.max_steps:
            return f"trainer.max_steps={limits.max_steps} reached"
        if limits.max_epochs and self.epochs >= limits.max_epochs:
            return f"trainer.max_epochs={limits.max_epochs} reached"
        if limits.max_minutes and self.seconds >= 60 * limits.max_minutes:
            return f"trainer.max_minutes={limits.max_minutes:g} reached"
        if limits.patience and self.waited >= limits.patience:
            return f"no better {limits.metric} in trainer.patience={limits.patience} validations"
        return ""

    def take(self, step: int, scores: dict[str, float], column: str) -> bool:
        """Note a validation; whether it is the best so far."""
        if not better(scores, self.best_scores, column):
            self.waited += 1
            return False
        self.waited, self.best_step, self.best_scores = 0, step, scores
        return True

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Standing":
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def better(scores: dict[str, float], others: dict[str, float], column: str) -> bool:
    """Whether ``scores`` beat ``others`` (empty: none yet): a loss where it is lower, all else where it is higher, and
    equal ones by the lower loss (BLEU stays at 0 for a while)."""

    def worth(row: dict[str, float]) -> tuple[float, float]:
        return (-row[column] if column == "valid_loss" else row[column], -row["valid_loss"])

    return not others or worth(scores) > worth(others)
