"""Ways to break a corpus's files, and what may be asked of those who read them.

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
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 0))
SECONDS, MEBIBYTES = 5, 200


def examples(few: int):
    """So many, always the same, or as many as are asked for."""
    return settings(
        max_examples=EXAMPLES or few,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


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


def files(path: Path, kind: str, content: bytes) -> list[str]:
    """The names of a file with that content, and of another where they come in couples."""
    path.write_bytes(content)
    if kind not in ("text", "verses"):
        return [str(path)]
    other = path.with_name(f"target-{path.name}")
    other.unlink(missing_ok=True)
    other.hardlink_to(path)
    return [str(path), str(other)]


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
    """Fails where the peak of the memory rises by much, or the processor's time is up, or much of the clock's."""
    is_linux = Path("/proc/self/clear_refs").exists()
    if is_linux:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is forgotten
        before = resident("VmRSS")
    starts = time.process_time(), time.monotonic()
    yield
    assert time.process_time() - starts[0] < SECONDS
    assert time.monotonic() - starts[1] < 10 * SECONDS  # others work on the machine, too
    assert not is_linux or resident("VmHWM") - before < MEBIBYTES << 10


def resident(name: str) -> int:
    """KiB of this process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
