"""Files whose making may be interrupted: what is done stands in ``G.partial``, and the same job again goes on there.

``G.partial.json`` tells how many rows are in it and what it is made from. First rows, then the count of them, are on
disk before the next ones are made, so wherever a job is killed, what is counted is there. ``G`` appears when it is
complete.
"""

import fcntl
import gzip
import hashlib
import io
import json
import os
from pathlib import Path

from pipeline.checkpoint import to_disk
from pipeline.config import require
from pipeline.inference.outputs import disk_named


class Job:
    """A file that grows by rows of text."""

    def __init__(self, path: str | Path, made_from: dict):
        """
        Args:
            made_from: names and values, as JSON has them, of whatever decides what the rows are.

        Raises:
            ValueError: what was done before was made from something else, or is no such job's, or is being made.
        """
        self.path = Path(path).resolve()
        self.partial = self.path.with_name(f"{self.path.name}.partial")
        self.record = self.path.with_name(f"{self.path.name}.partial.json")
        self.made_from = made_from
        self.rows = self.bytes = 0
        self.file: io.BufferedWriter | None = None
        if self.partial.exists() and self.partial.stat().st_size:
            self._read_record()
            self._open()

    def append(self, text: str, rows: int) -> None:
        """:raises ValueError: another process writes the same file."""
        remedy = f"{self.rows} rows are done; make room, and the same command goes on there"
        with disk_named(self.partial, remedy):
            if not self.file:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._open()
                self._write_record()
            content = text.encode()
            if self.path.suffix == ".gz":
                content = gzip.compress(content, mtime=0)  # such pieces one after the other are a gzip file
            self._write(content)
            self.rows += rows
            self.bytes += len(content)
            self._write_record()

    def _write(self, content: bytes) -> None:
        try:
            self.file.write(content)
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError:
            self.file.raw.close()  # or Python tries once more when it ends, and complains
            raise

    def finish(self) -> None:
        """Give the file its name."""
        if not self.file:
            self.append("", 0)
        self.file.close()
        self.partial.replace(self.path)
        to_disk(self.path.parent)
        self.record.unlink()

    def _read_record(self) -> None:
        remedy = f"remove {self.partial} to start anew"
        try:
            record = json.loads(self.record.read_text("utf-8"))
            begun_from, self.rows, self.bytes = record["made_from"], record["rows"], record["bytes"]
        except (OSError, ValueError, LookupError, TypeError):
            raise ValueError(
                f"{self.record}, which tells what is in {self.partial.name}, is missing or damaged: {remedy}"
            ) from None
        for name in {**begun_from, **self.made_from}:
            require(
                begun_from.get(name) == self.made_from.get(name),
                f"{self.partial} holds {self.rows} rows that were made with another {name}: give that one to go on, or "
                f"{remedy}",
            )
        require(
            self.partial.stat().st_size >= self.bytes, f"{self.partial} has lost some of its {self.rows} rows: {remedy}"
        )

    def _write_record(self) -> None:
        record = {"rows": self.rows, "bytes": self.bytes, "made_from": self.made_from}
        new = self.record.with_name(f"{self.record.name}.new")
        new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        to_disk(new)
        new.replace(self.record)

    def _open(self) -> None:
        self.file = open(self.partial, "ab")  # noqa: SIM115
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is writing {self.partial}: wait for it, or end it") from None
        self.file.truncate(self.bytes)  # what was written and not counted


def fingerprint(*files: Path) -> str:
    """SHA-256 of files' content, in this order."""
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def model_files(path: str | Path) -> list[Path]:
    """The files of a model: a checkpoint, or those of a model folder or of the one in a run folder."""
    path = Path(path)
    folder = path / "model" if (path / "model").is_dir() else path
    return sorted(file for file in (folder.iterdir() if folder.is_dir() else [path]) if file.is_file())
