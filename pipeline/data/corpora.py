"""Every source of sentence pairs as ``datasets.Dataset`` with the columns ``source`` and ``target``, text untouched.

A kind of corpus is a function from the configuration and some names to rows, and one line in ``KINDS``.
"""

import json
from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from datasets import Dataset

from pipeline.data.arrow import write_arrow
from pipeline.data.config import CorporaConfig
from pipeline.data.hub import hub_pairs, local_files
from pipeline.data.lines import read_lines
from pipeline.data.progress import progress
from pipeline.data.sword import module_files, verse_pairs

SPLITS = ("train", "valid", "test")
COLUMNS = ("source", "target", "group", "fault")
SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])


def load(corpora: CorporaConfig, folder: str | Path) -> dict[str, Dataset]:
    """The splits that the configuration names, ``train`` always; their Arrow files are written into ``folder``.

    Rows keep their order and text its raw form. ``group`` names what belongs together (a chapter) and ``fault`` a
    reason not to use the row, where a kind of corpus knows such things.

    Raises:
        ValueError: the corpus is not what the configuration says; the message names file and row.
        OSError: a file cannot be read.
    """
    if not corpora.train and corpora.kind != "sword":
        raise ValueError(f"corpora.train is empty: name the training data of kind {corpora.kind}")
    splits = [split for split in SPLITS if split == "train" or getattr(corpora, split)]
    return {split: write_arrow(Path(folder) / f"{split}.arrow", SCHEMA, _columns(corpora, split)) for split in splits}


def identity(corpora: CorporaConfig) -> tuple[dict, list[Path]]:
    """What the corpus depends on: the settings that its kind reads, and its files, of which only the content counts."""
    kind = KINDS[corpora.kind]
    settings = {name: getattr(corpora, name) for name in ("kind", *kind.settings)}
    for split in SPLITS:
        names = getattr(corpora, split)
        settings[split] = names if corpora.kind == "hub" else len(names)
        if split != "train" and not names:
            settings[f"{split}_size"] = getattr(corpora, f"{split}_size")
    return settings, kind.files(corpora)


def named_files(corpora: CorporaConfig) -> list[Path]:
    """The files that the configuration names, split by split."""
    return [Path(name) for split in SPLITS for name in getattr(corpora, split)]


def text_pairs(corpora: CorporaConfig, names: list[str]) -> Iterator[tuple[str, str]]:
    """Couples of line-aligned files."""
    if len(names) % 2:
        raise ValueError(f"corpora: {names[-1]} has no partner: text files come in couples, source then target")
    for couple in zip(names[::2], names[1::2], strict=True):
        lines = [read_lines(name, corpora.encoding) for name in couple]
        for number, (source, target) in enumerate(zip_longest(*lines), 1):
            if source is None or target is None:
                counts = [
                    number - (last is None) + sum(1 for _ in rest)
                    for last, rest in zip((source, target), lines, strict=True)
                ]
                raise ValueError(
                    f"{couple[0]} has {counts[0]} lines but {couple[1]} has {counts[1]}: line-aligned files are needed"
                )
            yield source, target


def tsv_pairs(corpora: CorporaConfig, names: list[str]) -> Iterator[tuple[str, str]]:
    """Tab-separated columns; quotes are text. Columns are named in the first row, or numbered from 1."""
    wanted = (corpora.source_column, corpora.target_column)
    numbered = all(column.isdecimal() for column in wanted)
    for name in names:
        columns = [int(column) - 1 for column in wanted] if numbered else None
        for number, line in enumerate(read_lines(name, corpora.encoding), 1):
            cells = line.split("\t")
            if columns is None:
                columns = [_column(cells, column, name) for column in wanted]
            elif not line:
                continue
            elif len(cells) <= max(columns):
                raise ValueError(f"{name}, row {number}: {len(cells)} columns, but {max(columns) + 1} are needed")
            else:
                yield cells[columns[0]], cells[columns[1]]


def _column(header: list[str], column: str, name: str) -> int:
    if column not in header:
        raise ValueError(
            f"{name} has no column {column}, only {', '.join(header)[:200]}: set corpora.source_column and "
            "corpora.target_column to names in its first row, or to numbers from 1 if it has no header"
        )
    return header.index(column)


def jsonl_pairs(corpora: CorporaConfig, names: list[str]) -> Iterator[tuple[str, str]]:
    """One JSON object a line; blank lines are skipped."""
    for name in names:
        for number, line in enumerate(read_lines(name, corpora.encoding), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{name}, row {number} is not one JSON object: {error}") from None
            yield tuple(
                _text(row, column, f"{name}, row {number}") for column in (corpora.source_column, corpora.target_column)
            )


def _text(row: object, column: str, place: str) -> str:
    """The text at a dotted path like ``translation.en``."""
    value = row
    for key in column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, str):
        found = "nothing" if value is None else f"a {type(value).__name__}"
        raise ValueError(f"{place}: {found} at {column} where text is needed: correct the row or the column's name")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{place}: half of a surrogate pair at {column} is not text: correct the row")
    return value


class Kind(NamedTuple):
    """How one kind of corpus is read."""

    read: Callable[[CorporaConfig, list[str]], Iterator[tuple[str | None, ...]]]
    """Rows of the named files or splits, in the order of ``COLUMNS``; later columns may be missing."""

    files: Callable[[CorporaConfig], list[Path]]
    """The local files it is made of."""

    settings: tuple[str, ...]
    """The other settings that change the rows."""


KINDS = {
    "sword": Kind(verse_pairs, module_files, ()),
    "hub": Kind(hub_pairs, local_files, ("name", "configuration", "source_column", "target_column")),
    "text": Kind(text_pairs, named_files, ("encoding",)),
    "tsv": Kind(tsv_pairs, named_files, ("encoding", "source_column", "target_column")),
    "jsonl": Kind(jsonl_pairs, named_files, ("encoding", "source_column", "target_column")),
}


def _columns(corpora: CorporaConfig, split: str) -> Iterator[list[list[str]]]:
    """A split's rows, a thousand at a time, as columns."""
    names = getattr(corpora, split)
    rows = KINDS[corpora.kind].read(corpora, names)
    num_rows = 0
    with progress(f"reading {split}") as advance:
        while some := list(islice(rows, 1000)):
            columns = zip_longest(COLUMNS, zip(*some, strict=True), fillvalue=("",) * len(some))
            yield [list(map(_one_line, texts)) for _, texts in columns]
            num_rows += len(some)
            advance(len(some))
    if not num_rows:
        raise ValueError(f"corpora.{split}={names}: no data, not a single pair")


def _one_line(text: str | None) -> str:
    """Rows of jsonl and hub may hold line ends, or nothing at all."""
    return text.replace("\r\n", " ").replace("\n", " ") if text and "\n" in text else text or ""
