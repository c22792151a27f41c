"""A progress bar on stderr for what takes longer than two seconds."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

PATIENCE = 2.0  # seconds


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """``with progress("reading") as advance: ...; advance(1000)``. Without a terminal it is silent."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TaskProgressColumn(show_speed=True))
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(description, total=total)
    begun = time.monotonic()

    def advance(count: int) -> None:
        bar.advance(task, count)
        if not bar.live.is_started and time.monotonic() - begun > PATIENCE:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()
