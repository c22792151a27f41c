"""What a user sees of a run while it goes on: a live line in a terminal, else a plain line for each row of the log.

All of it goes to stderr, and only rank 0 speaks.
"""

from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Display:
    def __init__(self, speaks: bool):
        self.console = Console(stderr=True, quiet=not speaks, highlight=False)
        self.bar = Progress(
            BarColumn(20), TextColumn("{task.description}", markup=False), console=self.console, transient=True
        )
        self.task = self.bar.add_task("", total=1.0)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def show(self, row: dict[str, float], progress: float, seconds_left: float) -> None:
        """Bring the live line up to date with a row of the log, or print it."""
        text = (
            f"update {row['step']:,} ({progress:.0%})  loss {row['loss']:.4f}  rate {row['learning_rate']:.2e}  "
            f"tokens/s {row['source_tokens_per_second']:,.0f} + {row['target_tokens_per_second']:,.0f}  "
            f"data wait {row['waiting']:.0%}  padding {row['padding']:.0%}  "
            f"left {timedelta(seconds=round(seconds_left))}"
        )
        if self.console.is_terminal and not self.console.quiet:
            self.bar.start()
            self.bar.update(self.task, description=text, completed=progress)
        else:
            self.say(text)

    def close(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()
