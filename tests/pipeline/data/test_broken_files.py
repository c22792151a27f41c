"""Files that are broken, by accident or on purpose: rows or one line of complaint, soon and in little memory."""

import gzip
import struct
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs
from tests.pipeline.data.breaking import PO, SEEDS, TMX, broken, examples, files, little_time_and_memory, written


def read(folder: Path, kind: str, name: str, content: bytes) -> list[tuple] | str:
    """The first rows, or the complaint."""
    names = files(folder / name, kind, content)
    corpus = CorpusConfig(kind=kind, encoding="utf-16" if name.endswith("utf16") else "utf-8")
    try:
        rows = list(islice(read_pairs(corpus, names), 100_000))
    except (ValueError, OSError) as error:
        assert type(error) is ValueError or getattr(error, "errno", None), repr(error)
        assert name in str(error) and str(error).isprintable() and len(str(error)) < 1000
        return str(error)
    for row in rows:
        "".join(text or "" for text in row).encode()  # no halves of surrogate pairs
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("broken")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_files_that_are_to_be_broken_are_whole(folder, seed):
    rows = read(folder, *SEEDS[seed])
    assert isinstance(rows, list) and rows


FOUND = {
    "a line end in a quoted header": ("csv", "a.csv", SEEDS["csv"][2].removeprefix(b"source,target\n")),
    "a name of a column that is not UTF-8": (
        "parquet",
        "a.parquet",
        SEEDS["parquet"][2].replace(b"\x0bt", b"\x0b\xf4"),
    ),
}


@pytest.mark.parametrize("breakage", FOUND)
def test_what_broke_a_reader_once_is_one_line_now(folder, breakage):
    assert isinstance(read(folder, *FOUND[breakage]), str)


MANY = 30 << 20


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def tmx(segment: str) -> bytes:
    return TMX.replace(b"it</seg>", segment.encode() + b"</seg>")


def declaring(*entities: str) -> bytes:
    return tmx("&a;").replace(b'SYSTEM "tmx14.dtd"', f"[{''.join(entities)}]".encode())


def catalog_of(count: int, length: int) -> bytes:
    """A compiled catalog whose texts are all in one place."""
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28, 0, 0)
    return head + struct.pack("<2I", length, 0) * min(count, 10_000) + bytes(length)


ATTACKS = {
    "a line without end": ("text", "a.txt", lambda: bytes(MANY)),
    "a line without end, packed": ("text", "a.gz", lambda: gzip.compress(bytes(MANY), 1)),
    "a line without end, packed twice": ("text", "a.zst", lambda: zstd(bytes(10 * MANY))),
    "a quote without end": ("csv", "a.csv", lambda: b'source,target\na,"' + b"line\n" * (MANY // 5)),
    "a row without end": ("csv", "a.csv", lambda: b"source,target\n" + b'"\n",' * (MANY // 4)),
    "columns without end": ("tsv", "a.tsv", lambda: b"\t" * MANY),
    "JSON within JSON": ("jsonl", "a.jsonl", lambda: b"[" * 1_000_000),
    "a number without end": ("jsonl", "a.jsonl", lambda: b'{"source": ' + b"9" * 1_000_000 + b"}"),
    "a text without end": ("parquet", "a.parquet", lambda: written(
        pa.parquet.write_table, pa.table({"source": ["a" * (2 << 20)], "target": ["b"]}), compression="zstd")),
    "a message without end": ("gettext", "a.po", lambda: PO + b'msgid ""\n' + b'"a"\n' * (MANY // 4)),
    "messages that lie over each other": ("gettext", "a.mo", lambda: catalog_of(10_000, 1 << 20)),
    "more messages than bytes": ("gettext", "a.mo", lambda: catalog_of(1 << 31, 10)),
    "a plural without end": ("gettext", "a.po", lambda: PO.replace(b"(n != 1)", b"(" * 900 + b"n" + b")" * 900)),
    "elements within elements": ("tmx", "a.tmx", lambda: tmx("<hi>" * (MANY // 4))),
    "an attribute without end": ("tmx", "a.tmx", lambda: tmx(f"<hi type='{'a' * MANY}'/>")),
    "a comment without end": ("tmx", "a.tmx", lambda: tmx("<!--" + "a" * MANY)),
    "a segment without end": ("tmx", "a.tmx", lambda: tmx("words &lt; " * (MANY // 11))),
    "entities of entities": ("tmx", "a.tmx", lambda: declaring(
        '<!ENTITY d "dddddddddd">',
        *(f'<!ENTITY {one} "{f"&{other};" * 1000}">' for one, other in ("cd", "bc", "ab")))),
    "an entity from a file": ("tmx", "a.tmx", lambda: declaring('<!ENTITY a SYSTEM "file:///proc/self/status">')),
    "an entity from the network": ("tmx", "a.tmx", lambda: declaring('<!ENTITY a SYSTEM "http://192.0.2.1/a">')),
    "declarations from the network": ("tmx", "a.tmx", lambda: declaring('<!ENTITY % a SYSTEM "http://a"> %a;')),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_one_line_of_complaint(folder, attack):
    kind, name, make = ATTACKS[attack]
    content = make()
    with little_time_and_memory():
        assert isinstance(read(folder, kind, name, content), str)


@pytest.mark.parametrize("seed", SEEDS)
@examples(30)
@given(data=st.data())
def test_a_broken_file_gives_rows_or_one_line(folder, seed, data):
    kind, name, content = SEEDS[seed]
    with little_time_and_memory():
        read(folder, kind, name, data.draw(broken(content)))
