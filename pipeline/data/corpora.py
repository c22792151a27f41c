"""Every source of sentence pairs as ``datasets.Dataset`` with the columns ``source`` and ``target``, text untouched.

A kind of corpus is a function from the configuration and some names to rows, and one line in ``KINDS``.
"""

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import datasets
from datasets import Dataset, Features, Value

from pipeline.config import CorporaConfig
from pipeline.data.hub import hub_pairs, local_files
from pipeline.data.lines import read_lines
from pipeline.data.progress import progress
from pipeline.data.sword import module_files, verse_pairs

SPLITS = ("train", "valid", "test")
COLUMNS = ("source", "target", "group", "fault")


def load(corpora: CorporaConfig, folder: str | Path) -> dict[str, Dataset]:
    """The splits that the configuration names, ``train`` always; their Arrow files are written into ``folder``.

    Rows keep their order and text its raw form. ``group`` names what belongs together (a chapter) and ``fault`` a
    reason not to use the row, where a kind of corpus knows such things.

    Raises:
        ValueError: the corpus is not what the configuration says; the message names file and row.
        OSError: a file cannot be read.
    """
    named = {split: getattr(corpora, split) for split in SPLITS}
    if not named["train"] and corpora.kind != "sword":
        raise ValueError(f"corpora.train is empty: name the training data of kind {corpora.kind}")
    return {
        split: _to_arrow(corpora, names, Path(folder) / split)
        for split, names in named.items()
        if names or split == "train"
    }


def source_files(corpora: CorporaConfig) -> list[Path]:
    """The files that the corpus is made of, in order; a change of their content is a change of the corpus."""
    if corpora.kind == "sword":
        return module_files(corpora)
    if corpora.kind == "hub":
        return local_files(corpora)
    return [Path(name) for split in SPLITS for name in getattr(corpora, split)]


def text_pairs(corpora: CorporaConfig, names: list[str]) -> Iterator[tuple[str, str]]:
    """Couples of line-aligned files."""
    if len(names) % 2:
        raise ValueError(f"corpora: {names[-1]} has no partner: text files come in couples, source then target")
    for source_name, target_name in zip(names[::2], names[1::2], strict=True):
        counts = [0, 0]
        lines = (read_lines(name, corpora.encoding) for name in (source_name, target_name))
        for pair in zip_longest(*lines):
            counts = [count + (line is not None) for count, line in zip(counts, pair, strict=True)]
            if counts[0] == counts[1]:
                yield pair
        if counts[0] != counts[1]:
            raise ValueError(
                f"{source_name} has {counts[0]} lines but {target_name} has {counts[1]}: line-aligned files are needed"
            )


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
    return value


KINDS: dict[str, Callable[[CorporaConfig, list[str]], Iterator[tuple[str | None, ...]]]] = {
    "sword": verse_pairs,
    "hub": hub_pairs,
    "text": text_pairs,
    "tsv": tsv_pairs,
    "jsonl": jsonl_pairs,
}


def _to_arrow(corpora: CorporaConfig, names: list[str], folder: Path) -> Dataset:
    """Stream the rows to an Arrow file. The folder is fresh, so datasets' own cache never answers with old rows."""

    def rows() -> Iterator[dict[str, str]]:
        number = 0
        with progress(f"reading {folder.name}") as advance:
            for number, row in enumerate(KINDS[corpora.kind](corpora, names), 1):
                yield {column: _one_line(text) for column, text in zip_longest(COLUMNS, row)}
                if number % 1000 == 0:
                    advance(1000)
        if not number:
            raise ValueError(f"corpora.{folder.name}={names}: no data, not a single pair")

    features = Features({column: Value("string") for column in COLUMNS})
    try:
        return Dataset.from_generator(rows, features=features, cache_dir=str(folder))
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None


def _one_line(text: str | None) -> str:
    """Rows of jsonl and hub may hold line ends, or nothing at all."""
    return text.replace("\r\n", " ").replace("\n", " ") if text else ""
