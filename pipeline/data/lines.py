"""The one reader of text: a line ends at ``\\n`` or ``\\r\\n`` and nowhere else, so n lines are n lines everywhere."""

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

GZIP = b"\x1f\x8b"


def read_lines(path: str | Path, encoding: str = "utf-8") -> Iterator[str]:
    """The lines of a file, plain or gzipped, or of the standard input (``-``), without their ends.

    U+2028, form feeds and lone carriage returns are text; a byte order mark at a line's start is not.

    Raises:
        ValueError: wrong bytes for the encoding, a broken gzip file, an unknown encoding, a closed standard input.
        OSError: the file cannot be read.
    """
    number, name = 0, "the standard input" if str(path) == "-" else path
    try:
        with _open(path) as file:
            for line in _split(file, encoding):
                number += 1
                text = line if isinstance(line, str) else line.decode(encoding)
                yield text.removesuffix("\n").removesuffix("\r").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{name}, line {number}: byte 0x{error.object[error.start]:02x} at position {error.start + 1} is not "
            f"{encoding}: convert it to UTF-8, or, for a corpus, name its encoding (corpora.encoding=latin-1)"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise ValueError(f"{name} is truncated or corrupt after line {number}: fetch it again") from None


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as stack:
        file = _standard_input() if str(path) == "-" else stack.enter_context(open(path, "rb"))
        if str(path).endswith(".gz") or file.peek(2)[:2] == GZIP:
            file = stack.enter_context(gzip.open(file))
        yield file


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("the standard input is closed: give it something to read, or name a file")
    # Python takes a lock of sys.stdin's when it ends, which whoever waits for a line in a thread still has.
    return sys.stdin.detach()


def _split(file: BinaryIO, encoding: str) -> Iterator[bytes | str]:
    """Bytes are split before they are decoded, so that a wrong byte has a line number. UTF-16 does not allow it."""
    try:
        splits_at_newline = "\n".encode(encoding) == b"\n"
    except LookupError:
        raise ValueError(f"corpora.encoding={encoding} is unknown to Python: name one like utf-8, latin-1") from None
    return file if splits_at_newline else io.TextIOWrapper(file, encoding, newline="\n")
