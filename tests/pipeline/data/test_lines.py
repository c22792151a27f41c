import gzip
import io
import sys

import pytest

from pipeline.data.lines import read_lines


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


def test_gzip_is_recognised_by_name_and_by_content(tmp_path):
    packed = gzip.compress("één\ntwee\n".encode())
    assert lines_of(tmp_path, packed, "text.gz") == lines_of(tmp_path, packed, "text") == ["één", "twee"]


def test_standard_input_is_a_file(monkeypatch):
    for content in (b"one\ntwo\n", gzip.compress(b"one\ntwo\n")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        assert list(read_lines("-")) == ["one", "two"]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_other_encodings_are_read_when_named(tmp_path, encoding):
    assert lines_of(tmp_path, "café\nfür\n".encode(encoding), encoding=encoding) == ["café", "für"]


def test_a_wrong_byte_is_named_with_its_file_and_line(tmp_path):
    with pytest.raises(ValueError, match=r"text, line 3: byte 0xe9 at position 4 is not utf-8.*corpora.encoding"):
        lines_of(tmp_path, b"one\ntwo\ncaf\xe9\nfour\n")


@pytest.mark.parametrize("broken", [gzip.compress(b"line\n" * 200)[:-20], b"<html>not gzip</html>"])
def test_a_broken_gzip_file_is_named(tmp_path, broken):
    with pytest.raises(ValueError, match=r"text.gz is truncated or corrupt"):
        lines_of(tmp_path, broken, "text.gz")


def test_an_unknown_encoding_is_named(tmp_path):
    with pytest.raises(ValueError, match="corpora.encoding=klingon is unknown"):
        lines_of(tmp_path, b"one\n", encoding="klingon")
