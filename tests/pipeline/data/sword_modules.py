"""Bible modules as tests need them."""

import bz2
import lzma
import struct
import zlib
from pathlib import Path

from pysword.books import BibleStructure

PACK = {"ZIP": zlib.compress, "BZIP2": bz2.compress, "XZ": lzma.compress}

Verses = dict[tuple[int, int], str]
"""Text by chapter and verse, of Genesis."""


def write_module(folder: Path, name: str, verses: Verses, packing: str = "", encoding: str = "UTF-8") -> Path:
    """An SWORD module, plain, or in packed blocks of a chapter each; the folder of its files."""
    data = folder / "modules" / name
    for path in (folder / "mods.d", data):
        path.mkdir(parents=True, exist_ok=True)
    driver = f"zText\nBlockType=CHAPTER\nCompressType={packing}" if packing else "RawText"
    (folder / "mods.d" / f"{name}.conf").write_text(
        f"[{name}]\nDataPath=./modules/{name}/\nModDrv={driver}\nSourceType=OSIS\nEncoding={encoding}\n"
    )
    places = BibleStructure("kjv", ["ot"])
    chapters: dict[int, bytes] = {}
    records = {}
    for (chapter, verse), text in verses.items():
        (row,) = places.ref_to_indicies("Gen", chapter, verse)["ot"]
        before = b"".join(chapters.values()) if not packing else chapters.get(chapter, b"")
        content = text.encode(encoding)
        chapters[chapter] = chapters.get(chapter, b"") + content
        records[row] = ([list(chapters).index(chapter)] if packing else []) + [len(before), len(content)]
    shape = "<IIH" if packing else "<IH"
    nothing = [0] * (len(shape) - 1)
    table = b"".join(struct.pack(shape, *records.get(row, nothing)) for row in range(max(records) + 1))
    if not packing:
        (data / "ot").write_bytes(b"".join(chapters.values()))
        (data / "ot.vss").write_bytes(table)
        return data
    packed = [PACK[packing](content) for content in chapters.values()]
    starts = [sum(map(len, packed[:number])) for number in range(len(packed))]
    blocks = zip(starts, map(len, packed), map(len, chapters.values()), strict=True)
    (data / "ot.czz").write_bytes(b"".join(packed))
    (data / "ot.czs").write_bytes(b"".join(struct.pack("<III", *block) for block in blocks))
    (data / "ot.czv").write_bytes(table)
    return data
