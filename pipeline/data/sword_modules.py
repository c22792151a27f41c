"""Verses of Bible modules of the SWORD project: a table says where each verse stands in a text, which may be packed.

pysword knows how verses are numbered, and the older markups. What lies outside of the files is damage, never no text.
"""

import bz2
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pysword.books import BibleStructure
from pysword.sapphire import Sapphire

from pipeline.data.lines import quoted

TABLES = {
    "rawtext": np.dtype([("start", "<u4"), ("length", "<u2")]),
    "rawtext4": np.dtype([("start", "<u4"), ("length", "<u4")]),
    "ztext": np.dtype([("block", "<u4"), ("start", "<u4"), ("length", "<u2")]),
    "ztext4": np.dtype([("block", "<u4"), ("start", "<u4"), ("length", "<u4")]),
}
"""A table's rows, by the driver that a module names."""

BLOCKS = np.dtype([("start", "<u4"), ("length", "<u4"), ("unpacked", "<u4")])
PACKED = {"zip": zlib.decompressobj, "bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}

ENCODINGS = {"": "utf-8", "utf-8": "utf-8", "latin-1": "cp1252"}

LARGEST = 64 << 20
"""Bytes of a block, unpacked, at most; the Bible has five million."""

LONGEST = 1 << 16
"""Bytes of a verse and its notes, at most."""

LONGEST_PATH = 255
"""Bytes: what systems allow for one name."""

MOST = 1 << 20
"""Rows of a table that are read: no Bible has as many verses."""

SECTION = re.compile(r"^\[([\w.+-]{1,100})\]\s*$", re.MULTILINE)

Place = tuple[str, int, int]
"""Book, chapter and verse."""


class Module(NamedTuple):
    """One module, as its description has it; keys are in lower case."""

    name: str
    folder: Path
    """Where ``mods.d`` and ``modules`` are."""
    description: dict[str, str]

    @property
    def data(self) -> Path:
        """The folder of its files. Raises ``ValueError`` where it lies outside of the modules' folder."""
        path = self.description.get("datapath", "")
        data = Path(os.path.normpath(self.folder / path))
        inside = data.is_relative_to(os.path.normpath(self.folder))
        if not inside or not path.isprintable() or len(path.encode()) > LONGEST_PATH:
            raise self.fault(f"its DataPath={quoted(path)} is not in {self.folder}")
        return data if data.is_dir() else data.parent

    def verses(self) -> Iterator[tuple[Place, str]]:
        """Its verses with their markup; those that it does not have are empty.

        Raises:
            ValueError: it is damaged, or of a kind that cannot be read.
        """
        driver, versification = self._setting("ModDrv", ""), self._setting("Versification", "kjv")
        if driver not in TABLES:
            raise self.fault(f"ModDrv={quoted(driver)} is none of {', '.join(TABLES)}")
        suffix = "" if driver.startswith("raw") else f".{self._setting('BlockType', 'book')[:1]}zz"
        testaments = [name for name in ("ot", "nt") if (self.data / f"{name}{suffix}").is_file()]
        if not testaments:
            raise self.fault(f"{self.data} has neither ot{quoted(suffix)} nor nt{quoted(suffix)}")
        try:
            structure = BibleStructure(versification, testaments)
        except ValueError:
            raise self.fault(f"Versification={quoted(versification)} is not known") from None
        for testament, books in structure.get_books().items():
            table = self._table(f"{testament}.vss" if not suffix else f"{testament}{suffix[:-1]}v", TABLES[driver])
            read = self._reader(testament, suffix)
            for book in books:
                for chapter in range(1, book.num_chapters + 1):
                    rows = structure.ref_to_indicies(book.osis_name, chapter)[testament]
                    for verse, row in enumerate(rows, 1):
                        text = read(table[row]) if row < len(table) and table[row]["length"] else b""
                        yield (book.osis_name, chapter, verse), self._decoded(text)

    def fault(self, what: str) -> ValueError:
        return ValueError(f"corpora: SWORD module {self.name} cannot be read: {what}: install it anew, or use another")

    def _setting(self, name: str, default: str) -> str:
        return self.description.get(name.lower(), default).lower()

    def _table(self, name: str, rows: np.dtype) -> np.ndarray:
        return np.fromfile(self.data / name, rows, MOST)

    def _reader(self, testament: str, suffix: str) -> Callable[[np.void], bytes]:
        """What gives the bytes of a verse by its row in the table."""
        path = self.data / f"{testament}{suffix}"
        key = self.description.get("cipherkey", "")
        decrypted = Sapphire(key).decrypt_bytes if key else bytes

        def cut(content: bytes, length: int) -> bytes:
            if len(content) < length:
                raise self.fault(f"{path.name} ends before its text")
            return content

        def read(start: int, length: int) -> bytes:
            with open(path, "rb") as file:
                file.seek(start)
                return decrypted(cut(file.read(min(length, LARGEST)), length))

        if not suffix:
            return lambda row: read(row["start"].item(), self._length(row))
        blocks = self._table(f"{testament}{suffix[:-1]}s", BLOCKS)

        @lru_cache(maxsize=2)
        def block(number: int) -> bytes:
            if number >= len(blocks):
                raise self.fault(f"{path.name} has no block {number}")
            return self._unpacked(read(blocks[number]["start"].item(), blocks[number]["length"].item()))

        def verse(row: np.void) -> bytes:
            start, length = row["start"].item(), self._length(row)
            return cut(block(row["block"].item())[start : start + length], length)

        return verse

    def _length(self, row: np.void) -> int:
        if row["length"] > LONGEST:
            raise self.fault(f"a verse of {row['length']} bytes")
        return row["length"].item()

    def _unpacked(self, content: bytes) -> bytes:
        packing = self._setting("CompressType", "zip")
        if packing not in PACKED:
            raise self.fault(f"CompressType={quoted(packing)} is none of {', '.join(PACKED)}")
        try:
            unpacked = PACKED[packing]().decompress(content, LARGEST)
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            raise self.fault(f"a block that is not packed as {packing} ({error})") from None
        return unpacked

    def _decoded(self, text: bytes) -> str:
        """Modules that say nothing of their encoding are in UTF-8 or else in Windows' Latin 1."""
        encoding = self._setting("Encoding", "")
        if encoding not in ENCODINGS:
            raise self.fault(f"Encoding={quoted(encoding)} is none of UTF-8, Latin-1")
        try:
            return text.decode(ENCODINGS[encoding])
        except UnicodeDecodeError:
            if encoding:
                raise self.fault(f"a verse that is not in its Encoding={encoding}") from None
            return text.decode("cp1252", "replace")


def find_modules(folder: Path) -> dict[str, Module]:
    """The installed modules by name."""
    modules = {}
    for path in sorted((folder / "mods.d").glob("*.conf")):
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        sections = SECTION.split(text)
        for name, body in zip(sections[1::2], sections[2::2], strict=True):
            lines = (line.partition("=") for line in body.split("\n") if not line.startswith("#"))
            description = {key.strip().lower(): value.strip() for key, equals, value in lines if equals}
            modules[name] = Module(name, folder, description)
    return modules
