"""How far work is, on stderr: a bar for what takes longer than two seconds, and without a terminal a line at times."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

PATIENCE = 2.0  # seconds
INTERVAL = 30.0  # seconds


@contextmanager
def progress(description: str, total: int | None = None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """``with progress("reading") as advance: ...; advance(1000)``. ``done`` of them were there before."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), _State(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task(description, total=total, completed=done, done=done)
    (task,) = bar.tasks
    begun = told = time.monotonic()

    def advance(count: int) -> None:
        nonlocal told
        bar.advance(task.id, count)
        now = time.monotonic()
        if console.is_terminal:
            if not bar.live.is_started and now - begun > PATIENCE:
                bar.start()
        elif now - told > INTERVAL:
            told = now
            print(f"{description}: {state(task)}", file=sys.stderr, flush=True)

    try:
        yield advance
    finally:
        bar.stop()


def state(task: Task) -> str:
    """``4,096 of 10,000, 204.8/s, 0:00:28 left``, as far as it can be known."""
    rate = (task.completed - task.fields["done"]) / max(task.elapsed or 0.0, 1e-9)
    text = f"{task.completed:,.0f}" + ("" if task.total is None else f" of {task.total:,.0f}") + f", {rate:,.1f}/s"
    if task.total is None or not rate:
        return text
    return f"{text}, {timedelta(seconds=round((task.total - task.completed) / rate))} left"


class _State(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(state(task))
