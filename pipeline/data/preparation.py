"""Stage 1 as a whole: corpus to a folder of encoded splits, tokenizers and a report; whole or not at all."""

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import datasets
import filelock
import numpy as np
import pyarrow as pa
from datasets import Dataset
from rich.console import Console
from rich.table import Table

from pipeline.config import Configuration
from pipeline.data.arrow import write_arrow
from pipeline.data.cleaning import clean, normalise
from pipeline.data.corpora import SPLITS, identity, load
from pipeline.data.progress import progress
from pipeline.data.splitting import split
from pipeline.data.tokenizer import UNK_ID, Tokenizers, train_tokenizers

FORMAT = 2
"""Rises when the same settings and files give other data than before."""

IDS = pa.list_(pa.int32())
SCHEMA = pa.schema({"source": pa.string(), "target": pa.string(), "source_ids": IDS, "target_ids": IDS})

LEARNED_FROM = 2_000_000
"""Pairs that tokenizers are learned from, at most, taken at even distances: SentencePiece holds them in memory."""


class Prepared(NamedTuple):
    """A prepared corpus. The splits have the columns source, target (text) and source_ids, target_ids (pieces, without
    bos and eos); the text of train is normalised, that of valid and test is as it was read."""

    train: Dataset
    valid: Dataset
    test: Dataset
    tokenizers: Tokenizers
    report: dict

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the settings and file contents that the data depends on."""
        return self.report["fingerprint"]

    @classmethod
    def load(cls, folder: str | Path) -> "Prepared":
        """Map a prepared corpus into memory. Raises ``ValueError`` for a folder that holds none."""
        report = _read_report(Path(folder))
        if report is None or report["format"] != FORMAT:
            raise ValueError(f"{folder} is not a prepared corpus, or one of another version: run scripts/prepare.py")
        splits = (Dataset.from_file(str(Path(folder) / f"{name}.arrow")) for name in SPLITS)
        return cls(*splits, Tokenizers.load(folder), report)


def prepare(configuration: Configuration) -> Prepared:
    """The prepared corpus in ``output.data``: the one that is there if nothing it depends on has changed, or a new one
    in its place. Any number of processes may ask at once; one does the work.

    Raises:
        ValueError: the corpus or a setting is wrong, no pair is left, or ``output.data`` holds something else.
        OSError: a file cannot be read or written.
    """
    output = Path(configuration.output.data)
    occupied = any(output.iterdir()) if output.is_dir() else output.exists()
    if occupied and _read_report(output) is None:
        raise ValueError(f"output.data={output} holds something else than a prepared corpus: name another folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    with _alone(output):
        for abandoned in output.parent.glob(f".{output.name}.*.tmp"):  # by a process that was killed
            shutil.rmtree(abandoned)
        fingerprint, sources = _fingerprint(configuration)
        report = _read_report(output)
        if report is None or report["fingerprint"] != fingerprint:
            with tempfile.TemporaryDirectory(prefix=f".{output.name}.", suffix=".tmp", dir=output.parent) as folder:
                report = {"format": FORMAT, "fingerprint": fingerprint, "sources": sources}
                _build(configuration, Path(folder), report)
                if output.exists():
                    os.rename(output, f"{folder}/old")
                os.rename(f"{folder}/new", output)
        return Prepared.load(output)


def print_report(report: dict) -> None:
    """What became of the corpus, as a table on stderr."""
    table = Table("", *SPLITS, title="Prepared corpus")
    table.add_row("pairs", *(f"{report['pairs'][name]:,}" for name in SPLITS))
    for side in ("source", "target"):
        for number, text in (("mean", "{:.1f}"), ("longest", "{:,}"), ("unknown_share", "{:.3%}")):
            values = (report["tokens"][name][side][number] for name in SPLITS)
            table.add_row(f"{side} tokens, {number.replace('_', ' ')}", *map(text.format, values))
    console = Console(stderr=True)
    console.print(table)
    read = f"{report['read']['train']:,} training pairs read"
    dropped = ", ".join(f"{count:,} {rule}" for rule, count in report["dropped"].items() if count) or "nothing"
    console.print(f"{read}, dropped: {dropped}", highlight=False, soft_wrap=True)
    sizes = " and ".join(f"{size:,}" for size in report["tokenizer"]["vocab_size"])
    console.print(
        f"vocabulary: {sizes} pieces; text normalised to {report['tokenizer']['unicode_form']}", highlight=False
    )


def _build(configuration: Configuration, folder: Path, report: dict) -> None:
    """Write ``folder/new``, its report last."""
    new = folder / "new"
    with _without_bars():
        pairs = load(configuration.corpora, folder)
        splits, dropped = split(pairs, configuration.corpora, configuration.cleaning)
        train, dropped = clean(splits.train, configuration.cleaning, dropped)
        if not len(train):
            held_out = f"{len(splits.valid)} valid, {len(splits.test)} test"
            raise ValueError(
                f"0 of {len(pairs['train'])} pairs left to train on ({dropped}; {held_out}): look at the corpus, or "
                "relax cleaning"
            )
        step = -(-len(train) // LEARNED_FROM)
        sample = train if step == 1 else train.select(range(0, len(train), step))
        tokenizers = train_tokenizers(_Texts(sample, "source"), _Texts(sample, "target"), configuration.tokenizer)
    splits = splits._replace(train=train)
    new.mkdir()
    tokenizers.save(new)
    unicode_form = configuration.cleaning.unicode_form
    encoded = {
        name: write_arrow(new / f"{name}.arrow", SCHEMA, _encode(rows, tokenizers, unicode_form, name))
        for name, rows in splits._asdict().items()
    }
    report |= {
        "read": {name: len(rows) for name, rows in pairs.items()},
        "pairs": {name: len(rows) for name, rows in encoded.items()},
        "dropped": dict(dropped.dropped),
        "with_controls": dropped.with_controls,
        "examples": dropped.examples,
        "tokenizer": dataclasses.asdict(configuration.tokenizer)
        | {
            "vocab_size": [tokenizer.vocab_size for tokenizer in tokenizers[: 1 if tokenizers.joint else 2]],
            "learned_from_pairs": len(sample),
            "unicode_form": unicode_form,
        },
        "tokens": {
            name: {side: _token_statistics(rows, f"{side}_ids") for side in ("source", "target")}
            for name, rows in encoded.items()
        },
    }
    (new / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=2), encoding="utf-8")


class _Texts(NamedTuple):
    """One column, read in batches and as often as needed."""

    pairs: Dataset
    column: str

    def __iter__(self) -> Iterator[str]:
        for batch in self.pairs.iter(1000):
            yield from batch[self.column]


def _encode(pairs: Dataset, tokenizers: Tokenizers, unicode_form: str, name: str) -> Iterator[list]:
    """Batches of the columns of ``SCHEMA``."""
    with progress(f"encoding {name}", len(pairs)) as advance:
        for batch in pairs.iter(1000):
            texts = [batch["source"], batch["target"]]
            ids = [
                tokenizer.encode([normalise(text, unicode_form) for text in side])
                for tokenizer, side in zip(tokenizers, texts, strict=True)
            ]
            yield texts + ids
            advance(len(texts[0]))


def _token_statistics(rows: Dataset, column: str) -> dict[str, float]:
    lengths = unknown = np.zeros(0, dtype=np.int64)
    for chunk in rows.data.column(column).chunks:
        lengths = np.append(lengths, np.diff(chunk.offsets))
        unknown = np.append(unknown, np.count_nonzero(chunk.flatten().to_numpy() == UNK_ID))
    return {
        "total": int(lengths.sum()),
        "mean": round(float(lengths.mean()), 2) if len(lengths) else 0.0,
        "longest": int(lengths.max(initial=0)),
        "unknown_share": float(unknown.sum() / max(1, lengths.sum())),
    }


def _read_report(folder: Path) -> dict | None:
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return report if report["format"] and report["fingerprint"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fingerprint(configuration: Configuration) -> tuple[str, list[dict]]:
    """SHA-256 of all that the data depends on, and the corpus's files with theirs."""
    corpora, paths = identity(configuration.corpora)
    sources = [{"path": str(path), "bytes": path.stat().st_size, "sha256": _hash_file(path)} for path in paths]
    settings = {
        "format": FORMAT,
        "corpora": corpora,
        "cleaning": dataclasses.asdict(configuration.cleaning),
        "tokenizer": dataclasses.asdict(configuration.tokenizer),
        "files": [source["sha256"] for source in sources],
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest(), sources


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _alone(output: Path) -> Iterator[None]:
    """Let one process at a time work on the folder."""
    lock = filelock.FileLock(output.parent / f".{output.name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        print(f"waiting for another process that prepares {output}", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _without_bars() -> Iterator[None]:
    """Hide datasets' own progress bars."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
