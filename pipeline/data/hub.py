"""Data sets of the Hugging Face Hub, and local folders of the same layout. Loading scripts are never run."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets

from pipeline.data.config import CorporaConfig


def hub_pairs(corpora: CorporaConfig, splits: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """The rows of the named splits.

    Raises ``ValueError``, in one line, for a data set that does not exist, needs a script or cannot be reached.
    """
    if not corpora.name:
        raise ValueError("corpora.name is empty: name the data set of the Hub (owner/name), or a local folder")
    with tempfile.TemporaryDirectory() as folder:
        # datasets' cache knows local files by size and time alone, so they are read anew.
        cache = folder if Path(corpora.name).is_dir() else None
        try:
            rows = datasets.load_dataset(
                corpora.name, corpora.configuration or None, split="+".join(splits), cache_dir=cache
            )
        except Exception as error:  # of many kinds: datasets', huggingface_hub's, httpx's
            raise ValueError(f"corpora.name={corpora.name}: {_reason(error)}") from error
        rows = rows.flatten()
        columns = [corpora.source_column, corpora.target_column]
        for column in columns:
            if column not in rows.column_names or rows.features[column].dtype not in ("string", "large_string"):
                raise ValueError(
                    f"corpora.name={corpora.name} has no text column {column}, only {', '.join(rows.column_names)}: "
                    "set corpora.source_column and corpora.target_column"
                )
        for batch in rows.select_columns(columns).iter(1000):
            yield from zip(*(batch[column] for column in columns), strict=True)


def local_files(corpora: CorporaConfig) -> list[Path]:
    """The files of a local folder; a data set of the Hub is known by its name."""
    return sorted(path for path in Path(corpora.name).rglob("*") if path.is_file()) if corpora.name else []


def _reason(error: Exception) -> str:
    """What went wrong and what to do, on one line."""
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    if "scripts are no longer supported" in first_line:
        return "needs a loading script, which is never run: use a copy in Parquet, or local files (corpora.kind=text)"
    if isinstance(error, ConnectionError):
        return f"cannot be reached (offline?): name a local folder, or local files (corpora.kind=text). {first_line}"
    return first_line
