"""Tables of sentence pairs: tab- or comma-separated text, JSON lines, Parquet and Arrow.

A column is named as it is in the file, by a dotted path into it (``translation.en``), or, in text without a header, by
its number from 1.
"""

import contextlib
import csv
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.data.config import CorpusConfig
from pipeline.data.lines import LONGEST, quoted, read_lines

DELIMITERS = (
    ("\t", "tabs", "tsv"),
    (";", "semicolons", "csv and corpora.delimiter=;"),
    (",", "commas", "csv"),
)
"""What may stand between cells, and the settings for it."""

LISTS = ("language", "translation")
"""Columns inside another that hold a list each: how sets of the Hub keep translations into any languages."""

COLUMN_SETTINGS = ("source_column", "target_column", "group_column")
BATCH = 1000


def tsv_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Tab-separated columns; quotes are text."""
    for name in names:
        lines = read_lines(name, corpus.encoding)
        yield from _picked(corpus, enumerate((line.split("\t") for line in lines), 1), name)


def csv_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[tuple[str, ...]]:
    """Comma-separated columns (RFC 4180), or so with another delimiter: a cell in quotes may hold it, line ends, and
    quotes written twice."""
    for name in names:
        reader = _CsvRows(read_lines(name, corpus.encoding), corpus.delimiter)
        try:
            yield from _picked(corpus, reader, name)
        except csv.Error as error:
            raise ValueError(
                f"{name}, line {reader.line}: {error}: correct its quotes, or, where they are text, use "
                "corpora.kind=tsv"
            ) from None


class _CsvRows:
    """Rows with the numbers of their last lines; ``csv.Error`` where one is none, or has no end."""

    def __init__(self, lines: Iterator[str], delimiter: str):
        self.lines, self.delimiter = lines, delimiter
        self.line = self.size = 0

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        for cells in csv.reader(self.ended(), strict=True, delimiter=self.delimiter):
            yield self.line, cells
            self.size = 0

    def ended(self) -> Iterator[str]:
        for line in self.lines:
            self.line += 1
            self.size += len(line)
            if self.size > LONGEST:
                raise csv.Error(f"a row of more than {LONGEST:,} characters")
            yield line + "\n"


def _picked(corpus: CorpusConfig, rows: Iterable[tuple[int, list[str]]], name: str) -> Iterator[tuple[str, ...]]:
    """The wanted cells of numbered rows; blank rows are skipped."""
    wanted = [column for column in _columns(corpus) if column]
    numbered = all(column.isdecimal() and int(column) for column in wanted)
    places = [int(column) - 1 for column in wanted] if numbered else []
    for number, cells in rows:
        if not places:
            places = [_place(cells, column, name) for column in wanted]
        elif len(cells) > 1 or any(cells):
            try:
                yield tuple([cells[place] for place in places])
            except IndexError:
                needed = max(places) + 1
                raise ValueError(
                    f"{name}, row {number}: {len(cells)} columns, but {needed} are needed{_otherwise(cells)}"
                ) from None


def _place(header: list[str], column: str, name: str) -> int:
    if column not in header:
        raise ValueError(
            f"{name} has no column {column}, only {quoted(', '.join(header))}: set corpora.source_column and "
            "corpora.target_column to names in its first row, or to numbers from 1 if it has no header"
            + _otherwise(header)
        )
    return header.index(column)


def _otherwise(cells: list[str]) -> str:
    """A remedy for a row that is one cell, and seems to be separated by other characters."""
    found = [(name, kind) for mark, name, kind in DELIMITERS if len(cells) == 1 and mark in cells[0]]
    return "".join(f"; if {name} separate them, set corpora.kind={kind}" for name, kind in found[:1])


def jsonl_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[tuple[str | None, ...]]:
    """One JSON object a line, its texts or null; blank lines are skipped."""
    columns = [(setting, getattr(corpus, setting)) for setting in COLUMN_SETTINGS]
    for name in names:
        for number, line in enumerate(read_lines(name, corpus.encoding), 1):
            if not line or line.isspace():
                continue
            place = f"{name}, row {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{place} is not one JSON object: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{place} is not one JSON object: correct the row, or leave it out")
            yield tuple([_text(row, setting, column, place) if column else "" for setting, column in columns])


def _text(row: dict, setting: str, column: str, place: str) -> str | None:
    try:
        value = _inside(row, column)
    except KeyError:
        raise ValueError(
            f"{place} has no {column} among its keys ({quoted(', '.join(_keys(row)))}): set corpora.{setting}, or "
            "correct the row"
        ) from None
    if isinstance(value, int) and setting == "group_column":
        return str(value)
    if not isinstance(value, str | None):
        raise ValueError(
            f"{place}: {column} holds a value of type {type(value).__name__}, not text: set corpora.{setting}, or "
            "correct the row"
        )
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise ValueError(f"{place}: half of a surrogate pair at {column} is not text: correct the row") from None
    return value


def _inside(row: dict, column: str) -> object:
    """What is at a name, or else at a dotted path, of nested objects; ``KeyError`` where they have no such place."""
    if column in row:
        return row[column]
    value: object = row
    for key in column.split("."):
        if value is None:  # what an object that is null would hold is null
            break
        if not isinstance(value, dict):
            raise KeyError(key)
        value = value[key]
    return value


def _keys(row: dict) -> Iterator[str]:
    """How columns may be named, as far as the second level."""
    for key, value in row.items():
        yield from (f"{key}.{inner}" for inner in value) if isinstance(value, dict) and value else [key]


def parquet_pairs(corpus: CorpusConfig, names: list[str], start: int = 0) -> Iterator[tuple[str | None, ...]]:
    """Columns of Parquet files from a row on; row groups before it are not read."""
    for name in names:
        with _readable(name, "Parquet"), pq.ParquetFile(name) as file:
            paths = column_paths(corpus, file.schema_arrow, name)
            wanted = [".".join(path) for path in paths] + [f"{path[0]}.{name}" for path in paths for name in LISTS]
            ends = list(accumulate(file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)))
            passed = bisect_right(ends, start)
            # Columns that are not there are left out.
            batches = file.iter_batches(BATCH, row_groups=list(range(passed, len(ends))), columns=wanted)
            yield from islice(column_pairs(paths, batches, name), start - (ends[passed - 1] if passed else 0), None)
            start = max(0, start - file.metadata.num_rows)


def arrow_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[tuple[str | None, ...]]:
    """Columns of Arrow files (Feather), or of Arrow streams as data sets of Hugging Face keep them."""
    for name in names:
        with _readable(name, "Arrow"), pa.memory_map(name) as file:
            is_stream = file.read(6) != b"ARROW1"
            file.seek(0)
            reader = pa.ipc.open_stream(file) if is_stream else pa.ipc.open_file(file)
            batches = reader if is_stream else map(reader.get_batch, range(reader.num_record_batches))
            paths = column_paths(corpus, reader.schema, name)
            yield from column_pairs(paths, batches, name)


def column_paths(corpus: CorpusConfig, schema: pa.Schema, name: str) -> list[list[str]]:
    """Where the source, the target and, if any, the group are in a table of that schema.

    Columns that are not named otherwise are also found as ``translation.en`` and ``en``, by their languages.
    """
    paths = []
    for side, column in zip(("source", "target", "group"), _columns(corpus), strict=True):
        names = [column] if column else []
        if column == side != "group":
            language = getattr(corpus, f"{side}_language")
            names += [f"translation.{language}", language]
        found = [(path, kind) for path, kind in (_typed_path(schema, name) for name in names) if kind]
        fitting = [path for path, kind in found if _is_text(kind) or (side == "group" and pa.types.is_integer(kind))]
        if names and not fitting:
            what = f"no text column {column}, only {quoted(', '.join(_leaves(schema)))}"
            if found:
                path, kind = found[0]
                what = f"{quoted(kind)} in column {'.'.join(path)} where text is needed"
            raise ValueError(f"{name} has {what}: set corpora.{side}_column")
        paths += fitting[:1]
    return paths


def column_pairs(
    paths: list[list[str]], batches: Iterable[pa.RecordBatch | pa.Table], name: str
) -> Iterator[tuple[str | None, ...]]:
    """Rows of the columns at the paths."""
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH):  # a batch may be a whole mapped file
            rows = batch.slice(start, BATCH)
            columns = [_strings(rows.column(path[0]), path[1:]) for path in paths]
            if any(len(text) > LONGEST for texts in columns for text in texts if text):
                raise ValueError(f"{name}: a text of more than {LONGEST:,} characters: divide it, or leave it out")
            yield from zip(*columns, strict=True)


def _strings(column: pa.Array | pa.ChunkedArray, inside: list[str]) -> list[str | None]:
    column.validate(full=True)
    for key in inside:
        if column.type.get_field_index(key) < 0:
            lists = zip(*(pc.struct_field(column, name).to_pylist() for name in LISTS), strict=True)
            return [dict(zip(languages or (), texts or (), strict=False)).get(key) for languages, texts in lists]
        column = pc.struct_field(column, key)
    return column.cast(pa.string()).to_pylist()


def _columns(corpus: CorpusConfig) -> list[str]:
    return [getattr(corpus, setting) for setting in COLUMN_SETTINGS]


def _typed_path(schema: pa.Schema, column: str) -> tuple[list[str], pa.DataType | None]:
    """The names that lead to a column, and the type of what it holds; no type where there is no such column."""
    keys = [column] if column in schema.names else column.split(".")
    fields = schema
    for number, key in enumerate(keys, 1):
        position = fields.get_field_index(key)
        if position < 0:
            are_lists = [(field.name, pa.types.is_list(field.type)) for field in fields] == [(n, True) for n in LISTS]
            return keys, fields.field("translation").type.value_type if are_lists and number == len(keys) else None
        kind = fields.field(position).type
        fields = kind if pa.types.is_struct(kind) else pa.schema([])
    return keys, kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_binary(kind)


def _leaves(fields: pa.Schema | pa.StructType, inside: str = "") -> Iterator[str]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, f"{inside}{field.name}.")
        else:
            yield inside + field.name


@contextlib.contextmanager
def _readable(name: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeError, OSError) as error:
        if getattr(error, "errno", None):  # the file cannot even be opened
            raise
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"{name} is not {kind}, or broken: {quoted(reason)}: fetch or write it again") from None
