"""Data sets of the Hugging Face Hub, and local folders of the same layout. Loading scripts are never run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets

from pipeline.data.config import CorpusConfig
from pipeline.data.tables import BATCH, column_pairs, column_paths


def hub_pairs(corpus: CorpusConfig, splits: list[str]) -> Iterator[tuple[str | None, ...]]:
    """The rows of the named splits.

    Raises ``ValueError``, in one line, for a data set that does not exist, needs a script or cannot be reached.
    """
    if not corpus.name:
        raise ValueError("corpora.name is empty: name the data set of the Hub (owner/name), or a local folder")
    with tempfile.TemporaryDirectory() as folder:
        # datasets' cache knows local files by size and time alone, so they are read anew.
        cache = folder if Path(corpus.name).is_dir() else None
        try:
            rows = datasets.load_dataset(
                corpus.name, corpus.configuration or None, split="+".join(splits), cache_dir=cache
            )
        except Exception as error:  # of many kinds: datasets', huggingface_hub's, httpx's
            raise ValueError(f"corpora.name={corpus.name}: {_reason(error)}") from error
        name = f"corpora.name={corpus.name}"
        paths = column_paths(corpus, rows.features.arrow_schema, name)
        columns = list(dict.fromkeys(path[0] for path in paths))
        yield from column_pairs(paths, rows.select_columns(columns).with_format("arrow").iter(BATCH), name)


def local_files(corpus: CorpusConfig) -> list[Path]:
    """The files of a local folder; a data set of the Hub is known by its name."""
    return sorted(path for path in Path(corpus.name).rglob("*") if path.is_file()) if corpus.name else []


def _reason(error: Exception) -> str:
    """What went wrong and what to do, on one line."""
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    if "scripts are no longer supported" in first_line:
        return "needs a loading script, which is never run: use a copy in Parquet, or local files (corpora.kind=text)"
    if isinstance(error, ConnectionError):
        return f"cannot be reached (offline?): name a local folder, or local files (corpora.kind=text). {first_line}"
    return first_line
