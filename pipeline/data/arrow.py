"""Rows streamed to Arrow files, whole or not at all, and such files mapped into memory."""

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[list]) -> int:
    """Write batches, each a list of columns in the schema's order; the number of rows."""
    rows = 0
    new = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    try:
        with pa.OSFile(str(new), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for columns in batches:
                batch = pa.record_batch(columns, schema)
                writer.write_batch(batch)
                rows += len(batch)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    return rows


def map_arrow(path: Path) -> pa.Table:
    """The rows of a file, which stay on the disk until they are looked at."""
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_stream(file).read_all()
