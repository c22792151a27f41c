import bz2
import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import read_pairs

COMPRESSIONS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(kind: str, *names: str, **settings) -> list[tuple]:
    return list(read_pairs(CorpusConfig(kind=kind, **settings), list(names)))


def write(name: str, content: str | bytes) -> str:
    with open(name, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return name


def write_arrow(name: str, table: pa.Table) -> str:
    with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return name


def write_feather(name: str, table: pa.Table) -> str:
    pyarrow.feather.write_feather(table, name)
    return name


def write_parquet(name: str, table: pa.Table) -> str:
    pyarrow.parquet.write_table(table, name)
    return name


COLUMNAR = {"parquet": write_parquet, "arrow": write_arrow, "feather": write_feather}


def columnar(writer: str, columns: dict, **settings) -> list[tuple]:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    return rows("parquet" if writer == "parquet" else "arrow", COLUMNAR[writer]("file", table), **settings)


@pytest.mark.parametrize(("kind", "separator"), [("tsv", "\t"), ("csv", ",")])
def test_columns_are_found_by_name_or_number_and_may_name_a_group(kind, separator):
    lines = [["doc", "de", "en"], ["d1", "eins", "one"], ["d1", "zwei", "two"]]
    name = write("file", "\r\n".join(separator.join(cells) for cells in lines))
    named = {"source_column": "en", "target_column": "de"}
    assert rows(kind, name, **named) == [("one", "eins"), ("two", "zwei")]
    assert rows(kind, name, **named, group_column="doc") == [("one", "eins", "d1"), ("two", "zwei", "d1")]
    numbered = rows(kind, name, source_column="3", target_column="2", group_column="1")
    assert numbered == [("en", "de", "doc"), ("one", "eins", "d1"), ("two", "zwei", "d1")]
    with pytest.raises(ValueError, match="file has no column 0, only doc"):
        rows(kind, name, source_column="0", target_column="1")


def test_every_file_has_its_own_header():
    write("a.tsv", "source\ttarget\none\teins\n")
    write("b.tsv", "target\tsource\nzwei\ttwo\n")
    assert rows("tsv", "a.tsv", "b.tsv") == rows("tsv", "?.tsv") == [("one", "eins"), ("two", "zwei")]


def test_quoted_cells_of_csv_may_hold_commas_quotes_and_line_ends():
    content = 'source,target\r\n"a, ""b""","c\r\nd\u2028\ne"\r\n\r\n\ufeffplain,\n'
    assert rows("csv", write("file", content)) == [('a, "b"', "c\nd\u2028\ne"), ("plain", "")]


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('source,target\na,"b\nc,d\n', "line 3: unexpected end of data"),
        ('"sou\nrce",target\n', "has no column source, only sou rce, target: set"),
        ('source,target\na,"b"c\n', "line 2: ',' expected after '\"'"),
        ("source,target\na,b\rc,d\n", "line 2: new-line character seen in unquoted field"),
        ("source,target\n\na,b\nc\n", "row 4: 1 columns, but 2 are needed"),
        ('source,target\na,"' + "x" * 200_000 + '"\n', "line 2: field larger than field limit"),
        ("source\ttarget\n", "has no column source, only source target: set corpora.source_column"),
    ],
)
def test_broken_csv_is_named_with_its_line(content, place):
    with pytest.raises(ValueError, match=f"^file.*{place}") as error:
        rows("csv", write("file", content))
    assert "\n" not in str(error.value)


def test_cells_of_csv_may_have_another_character_between_them():
    content = 'source;target\n"a; ""b""";c, d\n'
    assert rows("csv", write("file", content), delimiter=";") == [('a; "b"', "c, d")]
    with pytest.raises(ValueError, match="corpora: delimiter='::' must be one character, such as ;"):
        CorpusConfig(delimiter="::")


@pytest.mark.parametrize(
    ("kind", "mark", "remedy"),
    [
        ("csv", ";", "if semicolons separate them, set corpora.kind=csv and corpora.delimiter=;"),
        ("csv", "\t", "if tabs separate them, set corpora.kind=tsv"),
        ("tsv", ",", "if commas separate them, set corpora.kind=csv"),
    ],
)
def test_a_table_that_is_separated_otherwise_is_told(kind, mark, remedy):
    name = write("file", f"source{mark}target\none{mark}eins\n")
    with pytest.raises(ValueError, match=f"file has no column source, .* if it has no header; {remedy}$"):
        rows(kind, name)
    with pytest.raises(ValueError, match=f"file, row 1: 1 columns, but 2 are needed; {remedy}$"):
        rows(kind, name, source_column="1", target_column="2")


def test_only_newlines_end_a_row():
    text = "a\u2028b\u2029c\x85d\x0ce\x1cf"
    assert rows("tsv", write("file", f"source\ttarget\n{text}\t{text}\n")) == [(text, text)]
    assert rows("tsv", write("file", "source\ttarget\r\na\rb\tc\r\n")) == [("a\rb", "c")]
    assert rows("csv", write("file", f"source,target\n{text},{text}\n")) == [(text, text)]
    line = json.dumps({"source": text, "target": text}, ensure_ascii=False)
    assert rows("jsonl", write("file", f"{line}\r\n\r\n{line}")) == [(text, text, "")] * 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_text_tables_may_be_in_other_encodings_and_compressed(encoding, suffix):
    contents = {
        "tsv": "source\ttarget\ncafé\tfür\n",
        "csv": 'source,target\n"café","für"\n',
        "jsonl": '{"source": "café", "target": "für"}\n',
    }
    for kind, content in contents.items():
        name = write(f"file.{suffix}", COMPRESSIONS[suffix](content.encode(encoding)))
        assert rows(kind, name, encoding=encoding)[0][:2] == ("café", "für")


def test_json_columns_are_names_before_they_are_paths():
    lines = [{"a.b": "named", "a": {"b": "inside", "n": 7}}, {"a": {"b": "inside", "n": "eight"}, "a.b": "named"}]
    name = write("file", "\n".join(map(json.dumps, lines)))
    columns = {"source_column": "a.b", "target_column": "a.b", "group_column": "a.n"}
    assert rows("jsonl", name, **columns) == [("named", "named", "7"), ("named", "named", "eight")]
    told = r"file, row 1 has no a.b.c among its keys \(a.b, a.b, a.n\): set corpora.source_column"
    with pytest.raises(ValueError, match=told):
        rows("jsonl", name, **columns | {"source_column": "a.b.c"})


@pytest.mark.parametrize("line", ["[" * 100_000, '{"source": ' + "9" * 5000 + "}", "{", "null"])
def test_json_that_is_no_row_is_one_line_of_complaint(line):
    with pytest.raises(ValueError, match="file, row 1") as error:
        rows("jsonl", write("file", line))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("writer", COLUMNAR)
def test_columns_of_columnar_files_are_found_by_name_or_path(writer):
    inside = [{"en": "one", "de": "eins"}, {"en": "two\u2028", "de": None}, None]
    columns = {"a.b": ["x", "y", "z"], "translation": inside, "doc": [1, 1, 2]}
    found = columnar(writer, columns, source_column="a.b", target_column="translation.de", group_column="doc")
    assert found == [("x", "eins", "1"), ("y", None, "1"), ("z", None, "2")]
    assert columnar(writer, columns) == [("one", "eins"), ("two\u2028", None), (None, None)]
    assert columnar(writer, {"de": ["eins"], "fr": ["un"]}, source_language="fr") == [("un", "eins")]


@pytest.mark.parametrize("writer", COLUMNAR)
def test_text_of_columnar_files_may_be_kept_in_any_way(writer):
    for kind in (pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(["a", "é", "a"], pa.string()).cast(kind)
        assert columnar(writer, {"source": column, "target": column}) == [("a", "a"), ("é", "é"), ("a", "a")]


@pytest.mark.parametrize("writer", COLUMNAR)
def test_more_rows_than_a_batch_keep_their_order(writer):
    numbers = [str(number) for number in range(2345)]
    assert columnar(writer, {"source": numbers, "target": numbers}) == [(number, number) for number in numbers]


@pytest.mark.parametrize("writer", COLUMNAR)
def test_a_missing_column_of_a_columnar_file_is_named_with_what_there_is(writer):
    with pytest.raises(ValueError, match="file has no text column source, only t.en, t.fr, list: set corpora.source_c"):
        columnar(writer, {"t": [{"en": "a", "fr": "b"}], "list": [["a"]]})


@pytest.mark.parametrize("writer", COLUMNAR)
def test_a_column_of_anything_but_text_is_refused_but_for_groups_of_numbers(writer):
    columns = {"source": [7], "target": ["b"], "list": [["a"]], "translation": [{"en": "a"}]}
    told = "file has int64 in column source where text is needed: set corpora.source_column"
    with pytest.raises(ValueError, match=told):
        columnar(writer, columns | {"translation": [1.5]})
    with pytest.raises(ValueError, match="file has list<.*string> in column list where text is needed: set corpora.t"):
        columnar(writer, columns, target_column="list")
    assert columnar(writer, columns, group_column="source") == [("a", "b", "7")]


@pytest.mark.parametrize("writer", COLUMNAR)
@pytest.mark.parametrize("keep", [0, 5, 200, -20])
def test_a_columnar_file_that_is_cut_off_is_named(writer, keep):
    COLUMNAR[writer]("file", pa.table({"source": ["one"] * 500, "target": ["eins"] * 500}))
    content = Path("file").read_bytes()[:keep]
    kind = "Parquet" if writer == "parquet" else "Arrow"
    with pytest.raises(ValueError, match=f"file is not {kind}, or broken: .*: fetch or write it again") as error:
        rows(kind.lower(), write("file", content))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet", "arrow"])
def test_a_file_that_is_not_there_is_named(kind):
    with pytest.raises(OSError, match="nowhere"):
        rows(kind, "nowhere")


def test_reversed_rows_have_their_sides_exchanged_and_keep_their_groups():
    table = pa.table({"en": ["one"], "de": ["eins"], "doc": ["d"]})
    write_parquet("file", table)
    settings = {"source_language": "de", "target_language": "en", "group_column": "doc"}
    assert rows("parquet", "file", **settings) == rows("parquet", "file", **settings, reverse=True)
    write("a.tsv", "source\ttarget\none\teins\n")
    assert rows("tsv", "a.tsv", reverse=True) == [("eins", "one")]
