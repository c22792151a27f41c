import bz2
import gzip
import io
import lzma
import os
import sys
import tracemalloc

import pyarrow
import pytest

from pipeline.data.lines import read_aligned, read_lines


def zstd(content: bytes) -> bytes:
    return pyarrow.compress(content, codec="zstd", asbytes=True)


def lines_of(tmp_path, content: bytes, name="text", **options):
    (tmp_path / name).write_bytes(content)
    return list(read_lines(tmp_path / name, **options))


def test_only_newlines_end_a_line(tmp_path):
    text = "a\u2028b\u2029c\u0085d\fe\vf\x1cg\rh\nnext\n"
    assert lines_of(tmp_path, text.encode()) == ["a\u2028b\u2029c\u0085d\fe\vf\x1cg\rh", "next"]


def test_windows_line_ends_read_like_others(tmp_path):
    assert lines_of(tmp_path, b"one\r\ntwo\r\n") == lines_of(tmp_path, b"one\ntwo\n") == ["one", "two"]


def test_a_last_line_needs_no_end_and_blank_lines_are_lines(tmp_path):
    assert lines_of(tmp_path, b"one\n\nthree") == ["one", "", "three"]
    assert lines_of(tmp_path, b"one\n\n") == ["one", ""]
    assert lines_of(tmp_path, b"") == []


def test_byte_order_marks_are_no_text_even_where_files_were_joined(tmp_path):
    assert lines_of(tmp_path, b"\xef\xbb\xbfthe house\na tree\n\xef\xbb\xbfthe house\n") == [
        "the house",
        "a tree",
        "the house",
    ]


COMPRESSED = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
TEXT = "één\r\ntwee\u2028half\ndrie".encode()


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_are_recognised_by_content_whatever_their_name(tmp_path, suffix):
    packed = COMPRESSED[suffix](TEXT)
    for name in (f"text.{suffix}", f"text.{suffix.upper()}", "text", "text.gz"):
        assert lines_of(tmp_path, packed, name) == ["één", "twee\u2028half", "drie"]


@pytest.mark.parametrize("suffix", COMPRESSED)
def test_compressed_files_may_be_joined(tmp_path, suffix):
    packed = COMPRESSED[suffix](TEXT) + COMPRESSED[suffix](b" of 3\n")
    assert lines_of(tmp_path, packed) == ["één", "twee\u2028half", "drie of 3"]


def test_zeros_may_follow_xz(tmp_path):
    assert lines_of(tmp_path, lzma.compress(b"one\n") + bytes(8) + lzma.compress(b"two\n") + bytes(4)) == ["one", "two"]


def test_standard_input_is_a_file(monkeypatch):
    for content in (b"one\ntwo\n", gzip.compress(b"one\ntwo\n")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        assert list(read_lines("-")) == ["one", "two"]


def test_lines_are_handed_on_as_they_arrive(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(reader))
    lines = read_lines("-")
    for word in ("one", "two"):
        os.write(writer, word.encode() + b"\n")
        assert next(lines) == word
    os.close(writer)
    assert list(lines) == []


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be", "utf-32"])
def test_other_encodings_are_read_when_named(tmp_path, encoding):
    assert lines_of(tmp_path, "café\nfür\n".encode(encoding), encoding=encoding) == ["café", "für"]


def test_a_wrong_byte_is_named_with_its_file_and_line(tmp_path):
    with pytest.raises(ValueError, match=r"text, line 3: byte 0xe9 at position 4 is not utf-8.*corpora.encoding"):
        lines_of(tmp_path, b"one\ntwo\ncaf\xe9\nfour\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"text, line 1: byte 0xe9 at position 4 is not utf-8: convert it to UTF-8$"):
        lines_of(tmp_path, b"caf\xe9\n")  # no corpus


def breakages(packed: bytes) -> dict[str, bytes]:
    return {
        "cut off": packed[:-6],
        "begun only": packed[:12],
        "empty": b"",
        "another format": b"<html>not here</html>",
        "rubbish at its end": packed + b"rubbish at the end",
        "second part cut off": packed + packed[:-6],
    }


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("breakage", breakages(b""))
def test_a_broken_compressed_file_is_named(tmp_path, suffix, breakage):
    packed = COMPRESSED[suffix](b"".join(b"line %d\n" % number for number in range(500)))
    name = f"text.{suffix}"
    with pytest.raises(ValueError, match=rf"text.{suffix} is truncated or corrupt: fetch it again"):
        lines_of(tmp_path, breakages(packed)[breakage], name)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_a_changed_bit_of_a_compressed_file_is_noticed(tmp_path, suffix):
    packed = bytearray(COMPRESSED[suffix](b"".join(b"line %d\n" % number for number in range(500))))
    packed[len(packed) // 2] ^= 4
    with pytest.raises(ValueError, match=rf"text.{suffix} is truncated or corrupt"):
        lines_of(tmp_path, packed, f"text.{suffix}")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, pack):
    (tmp_path / "text").write_bytes(pack(b"short\n" + bytes(30 << 20)))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"text, line 2: longer than 1,048,576 characters: divide it"):
        list(read_lines(tmp_path / "text"))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_a_long_line_is_a_line(tmp_path):
    long = "é" * (1 << 20)
    assert lines_of(tmp_path, f"a\n{long}\nb".encode()) == ["a", long, "b"]
    with pytest.raises(ValueError, match="line 2: longer"):
        lines_of(tmp_path, f"a\n{long}é\nb".encode())


def test_an_unknown_encoding_is_named(tmp_path):
    for encoding in ("klingon", "hex"):
        with pytest.raises(ValueError, match=f"corpora.encoding={encoding} is unknown"):
            lines_of(tmp_path, b"one\n", encoding=encoding)


def test_text_that_is_not_in_the_encoding_named_is_refused(tmp_path):
    with pytest.raises(ValueError, match="text is not utf-16: .*name its encoding"):
        lines_of(tmp_path, b"one\n", encoding="utf-16")
    with pytest.raises(ValueError, match="text, line 2: byte 0x00 at position 3 is not utf-16-le"):
        lines_of(tmp_path, "a\nb".encode("utf-16-le") + b"\x00\xd8c\x00", encoding="utf-16-le")
    with pytest.raises(ValueError, match="text, line 2: byte 0xc3 at position 2 is not utf-8"):
        lines_of(tmp_path, b"one\na\xc3")


def test_aligned_files_give_lines_of_one_number_and_must_have_as_many(tmp_path):
    for name, lines in {"a": "1\n2\n", "b": "x\ny", "c": "p\n"}.items():
        (tmp_path / name).write_text(lines)
    a, b, c = (str(tmp_path / name) for name in "abc")
    assert list(read_aligned([a, b])) == [("1", "x"), ("2", "y")]
    with pytest.raises(ValueError, match=rf"{a} has 2 lines but {b} has 2 and {c} has 1: line-aligned"):
        list(read_aligned([a, b, c]))


def test_aligned_files_of_a_corpus_may_differ_in_encoding(tmp_path):
    names = [tmp_path / "a", tmp_path / "b"]
    for name, encoding in zip(names, ("utf-16", "latin-1"), strict=True):
        name.write_text("für\n", encoding=encoding)
    assert list(read_aligned(names, ["utf-16", "latin-1"])) == [("für", "für")]
    with pytest.raises(ValueError, match='a, line 1: .* is not utf-8: .*corpora.encoding="utf-16 latin-1"'):
        list(read_aligned(names, ["utf-8", "latin-1"]))
    with pytest.raises(ValueError, match='b, line 1: .* is not utf-8: .*corpora.encoding="utf-16 latin-1"'):
        list(read_aligned(names, ["utf-16", "utf-8"]))


def test_two_files_that_begin_as_utf_16_are_said_to_be_that_at_once(tmp_path):
    names = [tmp_path / "a", tmp_path / "b"]
    for name in names:
        name.write_text("für\n", encoding="utf-16")
    with pytest.raises(ValueError, match=r"a, line 1: .* is not utf-8: .*\(corpora.encoding=utf-16\)$"):
        list(read_aligned(names, ["utf-8", "utf-8"]))


def test_lines_before_a_wrong_byte_are_given_out_first(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("one\nzwölf\nM".encode() + b"\xfcll\nfour\n")
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["one", "zwölf"]
    with pytest.raises(ValueError, match="line 3: byte 0xfc at position 2"):
        next(lines)


def test_a_byte_order_mark_tells_the_encoding(tmp_path):
    for encoding in ("utf-16-le", "utf-16-be"):
        content = "\ufeffcafé\n".encode(encoding)
        with pytest.raises(ValueError, match=r"text, line 1: .* is not utf-8: .*\(corpora.encoding=utf-16\)"):
            lines_of(tmp_path, content, encoding="utf-8")
        assert lines_of(tmp_path, content, encoding="utf-16") == ["café"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PAR1\x15\x04text", "text is a Parquet file: set corpora.kind=parquet"),
        (b"ARROW1\0\0text", "text is an Arrow file: set corpora.kind=arrow"),
        (b"PK\3\4text", "text is a zip archive or an office document: save its text as plain text"),
    ],
)
def test_a_file_that_is_no_text_is_told(tmp_path, content, complaint):
    with pytest.raises(ValueError, match=complaint):
        lines_of(tmp_path, content, encoding="utf-8")
    assert lines_of(tmp_path, b"PAR1 is a receptor\n", encoding="utf-8") == ["PAR1 is a receptor"]
