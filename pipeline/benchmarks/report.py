"""A table of measurements: printed for people, and written for programs with its numbers as they are.

Imports torch only to publish, so that what cannot be written is refused at once.
"""

import csv
import json
from pathlib import Path

from pipeline.config import require

FORMATS = (".csv", ".json")


def require_name(option: str, path: str, suffixes: tuple[str, ...] = FORMATS) -> None:
    """Raise ``ValueError`` unless ``path``, given by ``option``, is empty or names a file of one of these formats."""
    one_of = "one of " if len(suffixes) > 1 else ""
    require(
        not path or Path(path).suffix in suffixes,
        f"--{option} {path}: choose a name that ends in {one_of}{', '.join(suffixes)}",
    )
    require(not path or not Path(path).is_dir(), f"--{option} {path} is a folder: choose another name")


def publish(rows: list[dict], title: str, path: str = "") -> None:
    """Print a table, named after the device; write the rows to ``path``, as CSV or JSON by its suffix.

    Raises:
        ValueError: ``path`` has another suffix; see ``require_name``, for before there is much work.
        OSError: it cannot be written.
    """
    import torch
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from pipeline.checkpoint import written_whole

    require_name("report", path)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    title = f"{title} on {where}, torch {torch.__version__}"
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for name in columns:
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row.get(name, "")) for name in columns))
    console = Console()
    console.width = max(console.width, 160) if console.is_terminal else 1000  # a file has no width to fit into
    console.print(table)
    if path:
        with written_whole(Path(path)) as new, open(new, "w", encoding="utf-8", newline="") as file:
            if Path(path).suffix == ".csv":
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
            else:
                file.write(json.dumps({"title": title, "rows": rows}, indent=2) + "\n")


def cell(value: object) -> str:
    """A value as tables show it."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"
