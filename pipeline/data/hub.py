"""Data sets of the Hugging Face Hub, and local folders of the same layout, read as they come: nothing is kept of them.
Loading scripts are never run.
"""

import codecs
import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import datasets
import pyarrow as pa
import pyarrow.json
from datasets.packaged_modules.json import json as datasets_json
from huggingface_hub import logging as hub_logging

from pipeline.data.config import CorpusConfig
from pipeline.data.lines import quoted
from pipeline.data.tables import BATCH, column_pairs, column_paths

NULL_ROW = re.compile(rb"[\r\n]\s*null")
"""A row of JSON lines that is ``null``, or a line of a longer row."""


def hub_pairs(corpus: CorpusConfig, splits: list[str], start: int = 0) -> Iterator[tuple[str | None, ...]]:
    """The rows of the named splits from one on. Only a split with a slice (``train[:1000]``) is fetched as a whole.

    Raises ``ValueError``, in one line, for a data set that does not exist, needs a script or cannot be reached.
    """
    if not corpus.name:
        raise ValueError("corpora.name is empty: name the data set of the Hub (owner/name), or a local folder")
    name = f"corpora.name={corpus.name}"
    with tempfile.TemporaryDirectory() as folder:
        # datasets' cache knows local files by size and time alone, so they are read anew.
        cache = folder if Path(corpus.name).is_dir() else None
        try:
            with _retries_untold():
                rows = datasets.load_dataset(
                    corpus.name,
                    corpus.configuration or None,
                    split="+".join(splits),
                    cache_dir=cache,
                    streaming=not any("[" in split for split in splits),
                )
            rows = rows if rows.features else rows._resolve_features()  # of text they are known from its first rows
        except Exception as error:  # of many kinds: datasets', huggingface_hub's, httpx's
            raise ValueError(f"{name}: {_reason(error)}") from error
        paths = column_paths(corpus, rows.features.arrow_schema, name)
        columns = list(dict.fromkeys(path[0] for path in paths))
        tables = rows.select_columns(columns).skip(start).with_format("arrow").iter(BATCH)
        try:
            yield from column_pairs(paths, _readable(tables, name), name)
        except pa.ArrowException as error:
            raise ValueError(f"{name}: {_reason(error)}") from None


def local_files(corpus: CorpusConfig) -> list[Path]:
    """The files of a local folder; a data set of the Hub is known by its name."""
    return sorted(path for path in Path(corpus.name).rglob("*") if path.is_file()) if corpus.name else []


def _readable(tables: Iterator[pa.Table], name: str) -> Iterator[pa.Table]:
    """What goes wrong with the data later on is told in the same way."""
    try:
        yield from tables
    except Exception as error:
        raise ValueError(f"{name}: {_reason(error)}") from error


@contextlib.contextmanager
def _retries_untold() -> Iterator[None]:
    """The Hub's library warns twice of each of six requests that do not arrive, before what is raised says so."""
    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)


def _read_json(file: BinaryIO, read_options: pyarrow.json.ReadOptions, **options: Any) -> pa.Table:
    """``pyarrow.json.read_json``, which a block that begins with ``null`` would end the process of
    (apache/arrow#47409): it is a row without values, as it is further on in a block."""
    content = file.read()
    after_row = b"{}\n" + content.removeprefix(codecs.BOM_UTF8)
    if not NULL_ROW.search(after_row):
        return pyarrow.json.read_json(io.BytesIO(content), read_options, **options)
    one_block = pyarrow.json.ReadOptions(block_size=len(after_row))
    return pyarrow.json.read_json(io.BytesIO(after_row), one_block, **options).slice(1)


datasets_json.paj = SimpleNamespace(**vars(pyarrow.json) | {"read_json": _read_json})


def _reason(error: Exception) -> str:
    """What went wrong and what to do, on one line."""
    if isinstance(error, datasets.exceptions.DatasetGenerationError):  # says nothing itself
        error = error.__cause__ or error
    told = quoted(" ".join(str(error).split())) or type(error).__name__
    if "scripts are no longer supported" in told:
        return "needs a loading script, which is never run: use a copy in Parquet, or local files (corpora.kind=text)"
    if isinstance(error, StopIteration):
        return "no data, not a single row"
    if isinstance(error, ConnectionError):
        return f"cannot be reached (offline?): name a local folder, or local files (corpora.kind=text). {told}"
    return told
