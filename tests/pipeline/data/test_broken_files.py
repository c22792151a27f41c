"""Files that are broken, by accident or on purpose: rows or one line of complaint, soon and in little memory.

``FUZZ_EXAMPLES=5000 pytest tests/pipeline/data/test_broken_files.py`` tries other and many more of them.
"""

import bz2
import gzip
import io
import lzma
import os
import struct
import time
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 0))
SECONDS, MEBIBYTES = 5, 200


def arrow_stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


def written(write, *arguments, **options) -> bytes:
    sink = io.BytesIO()
    write(*arguments, sink, **options)
    return sink.getvalue()


def compiled(*pairs: tuple[bytes, bytes]) -> bytes:
    places, content = ([], []), b""
    for pair in pairs:
        for side in (0, 1):
            places[side].extend((len(pair[side]), 28 + 16 * len(pairs) + len(content)))
            content += pair[side] + b"\0"
    head = (0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return struct.pack(f"<{7 + 4 * len(pairs)}I", *head, *places[0], *places[1]) + content


TABLE = pa.table(
    {
        "source": ["one", "two", None],
        "target": pa.array(["eins", "zwei", "eins"]).dictionary_encode(),
        "translation": [{"en": "a", "de": "é"}, {"en": "b", "de": "ü"}, None],
    }
)
LINES = "eins\nzwei é\n\ndrei\u2028\n".encode()
TSV = "source\ttarget\none\teins\n\ntwo\tzwei é\n".encode()
PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=2; plural=(n != 1);\\n"
#, fuzzy
msgctxt "menu"
msgid "_Open"
msgstr "Ö_ffnen"
msgid "file"
msgid_plural "%d files"
msgstr[0] "Datei"
msgstr[1] "%d "
"Dateien"
#~ msgid "old"
#~ msgstr "alt"
""".encode()
TMX = """<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>Press <bpt i="1">&lt;b></bpt>it</seg></tuv><tuv xml:lang="de"><seg>Drück é</seg></tuv></tu>
<tu><tuv xml:lang="de-AT"><seg><![CDATA[a < b]]></seg></tuv><tuv xml:lang="EN"><seg>&#233;</seg></tuv></tu>
</body></tmx>""".encode()
XLIFF = """<xliff version="1.2"><file original="a" source-language="en" target-language="de"><body>
<trans-unit id="1"><source>a <g id="1">b</g></source><target state="new">é</target><alt-trans/></trans-unit>
</body></file></xliff>""".encode()

SEEDS = {
    "text": ("text", "a.txt", LINES),
    "utf-16": ("text", "a.utf16", LINES.decode().encode("utf-16")),
    "gz": ("text", "a.gz", gzip.compress(LINES, mtime=0)),
    "bz2": ("text", "a.bz2", bz2.compress(LINES)),
    "xz": ("text", "a.xz", lzma.compress(LINES)),
    "zst": ("text", "a.zst", pa.compress(LINES, codec="zstd", asbytes=True)),
    "verses": ("verses", "a.txt", b"<range>\nIn the\n<range>\n\n"),
    "tsv": ("tsv", "a.tsv", TSV),
    "csv": ("csv", "a.csv", 'source,target\n"one ""x""","eins\né"\n\ntwo,zwei\n'.encode()),
    "jsonl": (
        "jsonl",
        "a.jsonl",
        b'{"source": "one", "target": "\\u00e9"}\n\n{"target": "b", "source": "a", "n": [1]}',
    ),
    "parquet": ("parquet", "a.parquet", written(pa.parquet.write_table, TABLE, compression="zstd")),
    "arrow": ("arrow", "a.arrow", arrow_stream(TABLE)),
    "feather": ("arrow", "a.feather", written(pa.feather.write_feather, TABLE, compression="lz4")),
    "tmx": ("tmx", "a.tmx", TMX),
    "xliff": ("xliff", "a.xlf", XLIFF),
    "po": ("gettext", "a.po", PO),
    "mo": ("gettext", "a.mo", compiled((b"", b"Language: de\n"), (b"menu\4a", "é".encode()), (b"b\0bs", b"c\0d"))),
}
TOKENS = [
    *(b"\0", b"\n", b"\r", b"\xff\xfe", b'"', b"\\", b"\t", b",", b"\xf0\x9f", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b"<", b"</tu>", b"<tu>", b"<seg>", b"&x;", b"&#0;", b"]]>", b"<!--", b"<!DOCTYPE a [", b"<source>"),
    *(b"[", b"{", b"}", b"null", b"\\ud800", b"msgid", b'msgid "', b"#~", b"msgstr[99]", b"<range>"),
    *(b"\x28\xb5\x2f\xfd", b"\x1f\x8b", b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(8), b"PAR1", b"ARROW1"),
]


@st.composite
def broken(draw, seed: bytes) -> bytes:
    """The seed with a few bits, bytes or pieces changed, or something else altogether."""
    if draw(st.integers(0, 20)) == 0:
        return draw(st.binary(max_size=200))
    content = bytearray(seed)
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.integers(0, len(content))) for _ in range(2))
        change = draw(st.sampled_from(("flip", "flip", "token", "bytes", "cut", "leave out", "repeat", "exchange")))
        if change == "flip" and start < len(content):
            content[start] ^= 1 << draw(st.integers(0, 7))
        elif change == "token":
            content[start:start] = draw(st.sampled_from(TOKENS)) * draw(st.sampled_from((1, 1, 2, 500)))
        elif change == "bytes":
            some = draw(st.binary(min_size=1, max_size=8))
            content[start : start + len(some)] = some
        elif change == "cut":
            del content[start:]
        elif change == "leave out":
            del content[start:end]
        elif change == "repeat":
            content[end:end] = content[start:end]
        elif change == "exchange":
            content[start:] = content[end:] + content[start:end]
    return bytes(content)


@contextmanager
def little_time_and_memory():
    """Fails where the peak of the memory rises by much, or the time is up."""
    is_linux = Path("/proc/self/clear_refs").exists()
    if is_linux:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
        before = resident("VmRSS")
    start = time.monotonic()
    yield
    assert time.monotonic() - start < SECONDS
    assert not is_linux or resident("VmHWM") - before < MEBIBYTES << 10


def resident(name: str) -> int:
    """KiB of this process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def read(folder: Path, kind: str, name: str, content: bytes) -> list[tuple] | str:
    """The first rows, or the complaint."""
    (folder / name).write_bytes(content)
    corpus = CorpusConfig(kind=kind, encoding="utf-16" if name.endswith("utf16") else "utf-8")
    names = [str(folder / name)] * (2 if kind in ("text", "verses") else 1)
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
@settings(
    max_examples=EXAMPLES or 30,
    derandomize=not EXAMPLES,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_broken_file_gives_rows_or_one_line(folder, seed, data):
    kind, name, content = SEEDS[seed]
    with little_time_and_memory():
        read(folder, kind, name, data.draw(broken(content)))
