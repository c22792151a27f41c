"""The one reader of text: a line ends at ``\\n`` or ``\\r\\n`` and nowhere else, so n lines are n lines everywhere."""

import codecs
import contextlib
import io
import lzma
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLOCK = 1 << 18
LONGEST = 1 << 20
"""Characters of the longest line, and of the longest text of any other kind of file."""

NO_TEXT = {
    b"PAR1\x15": ("a Parquet file", "parquet"),
    b"ARROW1\0\0": ("an Arrow file", "arrow"),
    b"PK\3\4": ("a zip archive or an office document", ""),
}
"""What else is given as text, by what it begins with, and the kind of corpus that it may be."""

COMPRESSIONS = {
    ".gz": ("gzip", re.compile(rb"\x1f\x8b")),
    ".bz2": ("bz2", re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")),
    ".xz": ("xz", re.compile(rb"\xfd7zXZ\0")),
    ".zst": ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")),
}
"""The codec of a file by the end of its name, and what its content begins with."""


def read_lines(path: str | Path, encoding: str = "", setting: Callable[[str], str] = str) -> Iterator[str]:
    """The lines of a file, plain or compressed, or of the standard input (``-``), without their ends. ``encoding`` is
    what a corpus is said to have; other text is UTF-8. ``setting`` is what ``corpora.encoding`` is to be where
    it has another one.

    U+2028, form feeds and lone carriage returns are text; a byte order mark at a line's start is not.

    Raises:
        ValueError: wrong bytes for the encoding, an unknown encoding, a line that is longer than ``LONGEST``, a broken
            compressed file, a closed standard input.
        OSError: the file cannot be read.
    """
    name = shown(path)
    of_corpus = bool(encoding)
    encoding = encoding or "utf-8"
    decoder = _decoder(encoding)
    number, rest, finished = 0, "", False
    with open_binary(path) as file:
        start = file.peek(8)
        for magic, (what, kind) in NO_TEXT.items():
            if start.startswith(magic):
                remedy = f"set corpora.kind={kind}" if kind and of_corpus else "save its text as plain text"
                raise ValueError(f"{name} is {what}: {remedy}")
        while not finished:
            block = file.read1(BLOCK)  # what there is, so that a terminal's line is answered at once
            finished = not block
            wrong = None
            try:
                text = decoder.decode(block, final=finished)
            except UnicodeDecodeError as error:  # what comes before it is given out first
                wrong, text = error, error.object[: error.start].decode(encoding, errors="replace")
            except UnicodeError as error:
                raise ValueError(f"{name} is not {encoding}: {error}: name its encoding (corpora.encoding)") from None
            lines = (rest + text).split("\n")
            if len(lines[0]) > LONGEST:  # the others are no longer than a block
                raise ValueError(
                    f"{name}, line {number + 1}: longer than {LONGEST:,} characters: divide it, or leave it out"
                )
            rest = lines.pop()
            if finished and rest and not wrong:
                lines.append(rest)
            for line in lines:
                yield line.removesuffix("\r").removeprefix("\ufeff")
            number += len(lines)
            if wrong:
                likely = "utf-16" if start.startswith(UTF16_MARKS) else "latin-1"
                remedy = f", or name its encoding (corpora.encoding={setting(likely)})" if of_corpus else ""
                raise ValueError(_wrong_byte(wrong, encoding, f"{name}, line {number + 1}", rest) + remedy)


def read_aligned(paths: list[str], encodings: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Lines with the same number of several files; ``ValueError`` where one has fewer than the others. ``encodings``
    are those of a corpus's source and target, the first two; others are UTF-8."""
    of_sides = [(encoding, partial(_setting, paths, encodings, side)) for side, encoding in enumerate(encodings)]
    files = [read_lines(path, *of_side) for path, of_side in zip_longest(paths, of_sides, fillvalue=())]
    for number, lines in enumerate(zip_longest(*files), 1):
        if None in lines:
            counts = [number - (line is None) + sum(1 for _ in rest) for line, rest in zip(lines, files, strict=True)]
            first, *others = (f"{path} has {count}" for path, count in zip(paths, counts, strict=True))
            raise ValueError(f"{first} lines but {' and '.join(others)}: line-aligned files are needed")
        yield lines


def _setting(paths: list[str], encodings: Sequence[str], side: int, likely: str) -> str:
    """What ``corpora.encoding`` is to be where a side is likely in another one, and maybe the other side as well."""
    likely_of = [
        "utf-16" if encoding == "utf-8" and _begins_as_utf16(path) else encoding
        for path, encoding in zip(paths, encodings, strict=False)
    ]
    likely_of[side] = likely
    return likely if {*likely_of} == {likely} else f'"{" ".join(likely_of)}"'


def _begins_as_utf16(path: str) -> bool:
    if not Path(path).is_file():  # what comes through a pipe is read once
        return False
    with open_binary(path) as file:
        return file.peek(2).startswith(UTF16_MARKS)


def shown(path: str | Path) -> str:
    """How messages name a file."""
    return "the standard input" if str(path) == "-" else str(path)


def quoted(text: object) -> str:
    """How messages quote what is in a file: on one line, and not all of it."""
    return "".join(character if character.isprintable() else " " for character in str(text)[:200])


@contextlib.contextmanager
def open_binary(path: str | Path) -> Iterator[io.BufferedReader]:
    """A file, or the standard input (``-``), unpacked where its name or its content says that it is compressed.

    Reading raises ``ValueError`` where the compressed data is truncated or corrupt, behind its end too.
    """
    with contextlib.ExitStack() as stack:
        file = _standard_input() if str(path) == "-" else stack.enter_context(open(path, "rb"))
        start = file.peek(16)
        by_content = [codec for codec, magic in COMPRESSIONS.values() if magic.match(start)]
        by_name = [codec for suffix, (codec, _) in COMPRESSIONS.items() if str(path).lower().endswith(suffix)]
        if by_name and not by_content:
            raise ValueError(_corrupt(path))
        yield io.BufferedReader(_Unpacked(file, by_content[0], path), BLOCK) if by_content else file


class _Unpacked(io.RawIOBase):
    """What a compressed file holds; its streams, if several, one after the other."""

    def __init__(self, file: BinaryIO, codec: str, path: str | Path):
        self.path = path
        if codec == "xz":
            self.unpack = _xz_reader(file)
        else:
            import pyarrow  # costs those who read plain text nothing; unlike Python's modules it allows no rubbish

            self.unpack = pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), codec).read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        try:
            data = self.unpack(len(buffer))
        except (OSError, EOFError, lzma.LZMAError):
            raise ValueError(_corrupt(self.path)) from None
        buffer[: len(data)] = data
        return len(data)


def _xz_reader(file: BinaryIO) -> Callable[[int], bytes]:
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def read(size: int) -> bytes:
        nonlocal decompressor
        data = b""
        while not data:
            if decompressor.eof:
                # The format pads streams with zeros, four at a time.
                rest = (decompressor.unused_data or file.read(BLOCK)).lstrip(b"\0")
                if not rest and not file.peek(1):
                    break
                decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            else:
                rest = file.read(BLOCK) if decompressor.needs_input else b""
                if decompressor.needs_input and not rest:
                    raise EOFError
            data = decompressor.decompress(rest, size)
        return data

    return read


def _corrupt(path: str | Path) -> str:
    return f"{shown(path)} is truncated or corrupt: fetch it again"


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise ValueError("the standard input is closed: give it something to read, or name a file")
    # Python takes a lock of sys.stdin's when it ends, which whoever waits for a line in a thread still has.
    return sys.stdin.detach()


def _decoder(encoding: str) -> codecs.IncrementalDecoder:
    try:
        "a".encode(encoding)  # refuses codecs that are none of text, like hex
        return codecs.getincrementaldecoder(encoding)()
    except LookupError:
        raise ValueError(f"corpora.encoding={encoding} is unknown to Python: name one like utf-8, latin-1") from None


def _wrong_byte(error: UnicodeDecodeError, encoding: str, place: str, before: str) -> str:
    position = len(before.encode(encoding, errors="replace")) + 1
    return (
        f"{place}: byte 0x{error.object[error.start]:02x} at position {position} is not {encoding}: convert it to UTF-8"
    )
