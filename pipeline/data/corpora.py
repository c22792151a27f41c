"""Every source of sentence pairs as Arrow files with the columns ``source`` and ``target``, text untouched.

A kind of corpus is a function from the configuration and some names to rows, and one line in ``KINDS``.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pipeline.data.arrow import map_arrow, write_arrow
from pipeline.data.cleaning import normalise
from pipeline.data.config import CorpusConfig
from pipeline.data.files import expand, expand_couples
from pipeline.data.gettext import catalog_files, catalog_pairs
from pipeline.data.hub import hub_pairs, local_files
from pipeline.data.lines import read_aligned
from pipeline.data.sword import module_files, verse_pairs
from pipeline.data.tables import COLUMN_SETTINGS, arrow_pairs, csv_pairs, jsonl_pairs, parquet_pairs, tsv_pairs
from pipeline.data.translation_memories import tmx_pairs, xliff_pairs
from pipeline.data.verses import reference_files, verse_line_pairs

SPLITS = ("train", "valid", "test")
COLUMNS = ("source", "target", "group", "fault")
SCHEMA = pa.schema([(column, pa.string()) for column in COLUMNS])

BATCH = 5000
"""Rows that are handled together."""

MOST_NAMES = 6
"""Files that are named when a corpus is read."""


class Shard(NamedTuple):
    """A file of raw rows, with the columns of ``SCHEMA``."""

    path: Path
    rows: int


def load(
    corpus: CorpusConfig,
    split: str,
    folder: Path,
    shard_pairs: int,
    advance: Callable[[int], None] = lambda count: None,
    most: int | None = None,
) -> Iterator[Shard]:
    """One corpus's rows of a split, written into a folder as shards of so many, each handed on when it is whole.

    Rows keep their order and text its raw form. ``group`` names what belongs together (a chapter) and ``fault`` a
    reason not to use the row, where a kind of corpus knows such things. Shards that are there are not written again.
    ``most`` rows are read at most.

    Raises:
        ValueError: the corpus is not what the configuration says; the message names file and row.
        OSError: a file cannot be read.
    """
    read_whole = folder / "read_whole"
    folder.mkdir(parents=True, exist_ok=True)
    rows = iter(()) if read_whole.exists() else islice(_rows(corpus, split), most)
    total = 0
    for number in count():
        path = folder / f"{number:05}.arrow"
        if path.exists():
            num_rows = len(map_arrow(path))
            next(islice(rows, num_rows, num_rows), None)  # passes over them
            advance(num_rows)
        elif first := next(rows, None):
            num_rows = write_rows(path, islice(chain([first], rows), shard_pairs), advance)
        else:
            break
        total += num_rows
        yield Shard(path, num_rows)
    read_whole.touch()
    print(f"    {'the first ' * (most == total)}{total:,} pair{'s' * (total != 1)}", file=sys.stderr)


def write_rows(
    path: Path, rows: Iterator[tuple[str | None, ...]], advance: Callable[[int], None] = lambda count: None
) -> int:
    """Write a raw shard, whole or not at all; the number of its rows."""
    return write_arrow(path, SCHEMA, _columns(rows, advance))


def identity(corpus: CorpusConfig) -> tuple[dict, list[Path]]:
    """What the corpus depends on: the settings that its kind reads, and its files, of which only the content counts."""
    if not corpus.train and corpus.kind != "sword" and not (corpus.kind == "gettext" and corpus.package):
        raise ValueError(f"corpora.train is empty: name the training data of kind {corpus.kind}")
    kind = KINDS[corpus.kind]
    settings = {name: getattr(corpus, name) for name in ("kind", "reverse", *kind.settings)}
    for split in SPLITS:
        names = getattr(corpus, split)
        settings[split] = names if corpus.kind == "hub" else len(kind.expand(corpus, names))
    return settings, kind.files(corpus)


def named_files(corpus: CorpusConfig) -> list[Path]:
    """The files that the configuration names, split by split."""
    kind = KINDS[corpus.kind]
    named = [names for split in SPLITS if (names := getattr(corpus, split)) or split == "train"]
    return [Path(file) for names in named for file in kind.expand(corpus, names)]


def text_pairs(corpus: CorpusConfig, files: list[str]) -> Iterator[tuple[str, ...]]:
    """Couples of line-aligned files."""
    for couple in zip(files[::2], files[1::2], strict=True):
        yield from read_aligned(list(couple), corpus.encodings)


def verse_files(corpus: CorpusConfig) -> list[Path]:
    """The same and the files that name the verses."""
    files = named_files(corpus)
    couples = zip(files[::2], files[1::2], strict=True)
    return files + [Path(name) for couple in couples for name in reference_files(couple)]


class Kind(NamedTuple):
    """How one kind of corpus is read."""

    read: Callable[..., Iterator[tuple[str | None, ...]]]
    """``read(corpus, names)``: rows of files or splits, in the order of ``COLUMNS``; later columns may be missing."""

    expand: Callable[[CorpusConfig, list[str]], list[str]]
    """The files or splits that the names stand for."""

    files: Callable[[CorpusConfig], list[Path]]
    """The local files it is made of."""

    settings: tuple[str, ...]
    """The other settings that change the rows, besides ``reverse``."""

    seeks: bool = False
    """``read(corpus, names, start)`` begins at a row, for less than reading those before costs."""


def _files(corpus: CorpusConfig, names: list[str]) -> list[str]:
    return expand(names)


def _couples(corpus: CorpusConfig, names: list[str]) -> list[str]:
    kinds = [OTHER_KINDS[end] for end in Path(names[-1]).suffixes if end in OTHER_KINDS] if len(names) % 2 else []
    if kinds:
        raise ValueError(
            f"corpora: {names[-1]} is no couple of files of kind {corpus.kind}: set corpora.kind={kinds[0]}"
        )
    files = expand_couples(names)
    for source, target in zip(files[::2], files[1::2], strict=True):
        if os.path.realpath(source) == os.path.realpath(target):
            raise ValueError(f"corpora: {source} is both source and target: name the file of each side")
    return files


def _as_they_are(corpus: CorpusConfig, names: list[str]) -> list[str]:
    return names


OTHER_KINDS = {
    **{f".{kind}": kind for kind in ("tsv", "csv", "jsonl", "parquet", "arrow", "tmx", "xliff")},
    **{".xlf": "xliff", ".po": "gettext", ".mo": "gettext"},
}
"""Kinds whose files do not come in couples, by the ends of their names."""

LANGUAGES = ("source_language", "target_language")

KINDS = {
    "text": Kind(text_pairs, _couples, named_files, ("encoding",)),
    "tsv": Kind(tsv_pairs, _files, named_files, ("encoding", *COLUMN_SETTINGS)),
    "csv": Kind(csv_pairs, _files, named_files, ("encoding", "delimiter", *COLUMN_SETTINGS)),
    "jsonl": Kind(jsonl_pairs, _files, named_files, ("encoding", *COLUMN_SETTINGS)),
    "parquet": Kind(parquet_pairs, _files, named_files, (*LANGUAGES, *COLUMN_SETTINGS), seeks=True),
    "arrow": Kind(arrow_pairs, _files, named_files, (*LANGUAGES, *COLUMN_SETTINGS)),
    "hub": Kind(
        hub_pairs, _as_they_are, local_files, ("name", "configuration", *LANGUAGES, *COLUMN_SETTINGS), seeks=True
    ),
    "tmx": Kind(tmx_pairs, _files, named_files, LANGUAGES),
    "xliff": Kind(xliff_pairs, _files, named_files, LANGUAGES),
    "gettext": Kind(catalog_pairs, catalog_files, named_files, (*LANGUAGES, "message_language", "package")),
    "verses": Kind(verse_line_pairs, _couples, verse_files, ("encoding",)),
    "sword": Kind(verse_pairs, _as_they_are, module_files, ()),
}


def read_pairs(corpus: CorpusConfig, names: list[str], start: int = 0) -> Iterator[tuple[str | None, ...]]:
    """Rows of files or splits from one on, in the order of ``COLUMNS``; later columns may be missing."""
    kind = KINDS[corpus.kind]
    if not corpus.reverse:
        names = kind.expand(corpus, names)
        return kind.read(corpus, names, start) if kind.seeks else islice(kind.read(corpus, names), start, None)
    there = dataclasses.replace(
        corpus, source_language=corpus.target_language, target_language=corpus.source_language, reverse=False
    )
    return ((target, source, *rest) for source, target, *rest in read_pairs(there, names, start))


def _rows(corpus: CorpusConfig, split: str) -> Iterator[tuple[str | None, ...]]:
    """A split's rows; the first three are shown before they are handed on."""
    names = getattr(corpus, split)
    rows = iter(read_pairs(corpus, names))
    first = list(islice(rows, 3))
    if not first:
        raise ValueError(f"corpora.{split}={names}: no data, not a single pair")
    told = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more"]
    print(f"reading {split} data of kind {corpus.kind}: {', '.join(told)}", file=sys.stderr)
    for source, target, *_ in first:
        print(f"    {_preview(source)}  |||  {_preview(target)}", file=sys.stderr)
    yield from chain(first, rows)


def _columns(rows: Iterator[tuple[str | None, ...]], advance: Callable[[int], None]) -> Iterator[list[list[str]]]:
    """Rows as columns, some thousands at a time."""
    while some := list(islice(rows, BATCH)):
        columns = zip_longest(COLUMNS, zip(*some, strict=True), fillvalue=("",) * len(some))
        yield [list(map(_one_line, texts)) for _, texts in columns]
        advance(len(some))


def _one_line(text: str | None) -> str:
    """Rows of some kinds may hold line ends, or nothing at all."""
    return text.replace("\r\n", " ").replace("\n", " ") if text and "\n" in text else text or ""


def _preview(text: str | None) -> str:
    text = normalise(text or "")
    return text if len(text) <= 80 else f"{text[:79]}…"
