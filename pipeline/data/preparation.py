"""Stage 1 as a whole: corpora to a folder of encoded splits, tokenizers and a report; whole or not at all.

The work is done in a hidden folder beside it, where the same command goes on after an interruption.
"""

import dataclasses
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import datasets
import filelock
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from pipeline.config import Configuration
from pipeline.data.advice import advise
from pipeline.data.corpora import SPLITS, identity
from pipeline.data.encoding import encode, learn
from pipeline.data.execution import Workers
from pipeline.data.full_disk import full_disk_told
from pipeline.data.report import print_report
from pipeline.data.report_page import write_report_page
from pipeline.data.stages import HELD_OUT, name_of, select
from pipeline.data.text import SIDES, Text
from pipeline.data.tokenizer import Tokenizers

__all__ = ["FORMAT", "Prepared", "prepare", "print_report"]

FORMAT = 3
"""Rises when the same settings and files give other data than before."""


STREAM_HEAD = 1 << 26
"""Of a file of a stream, which may be larger than any disk, so many bytes and the size are enough to know it again."""


class Prepared(NamedTuple):
    """A prepared corpus. The splits have the columns source, target (text), source_ids, target_ids (pieces, without
    bos and eos) and corpus (its number); the text of train is normalised, that of valid and test is as it was read."""

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
        """Map a prepared corpus into memory. Raises ``ValueError`` for a folder that holds none, or not all of one."""
        report = _read_report(Path(folder))
        if report is None or report["format"] != FORMAT:
            raise ValueError(f"{folder} is not a prepared corpus, or one of another version: run scripts/prepare.py")
        if damaged := _first_damaged(Path(folder), report):
            raise ValueError(_no_longer_whole(damaged))
        tokenizers = Tokenizers.load(folder)
        shards = {name: sorted(Path(folder).glob(f"{name}-*.arrow")) for name in SPLITS}
        splits = (datasets.concatenate_datasets([_map(path, tokenizers) for path in shards[name]]) for name in SPLITS)
        return cls(*splits, tokenizers, report)


class Dependencies(NamedTuple):
    """What prepared data depends on."""

    text_fingerprint: str
    """SHA-256 of what its text depends on."""

    fingerprint: str
    """SHA-256 of all of it."""

    sources: list[dict]
    """Path, size and SHA-256 of each file."""


def prepare(configuration: Configuration) -> Prepared:
    """The prepared corpus in ``output.data``: the one that is there if nothing it depends on has changed, or a new one
    in its place, made from the text of the old one where that is still right. Any number of processes may ask at once;
    one does the work, and uses what an interrupted one has done.

    Raises:
        ValueError: the corpus or a setting is wrong, no pair is left, or ``output.data`` holds something else.
        OSError: a file cannot be read or written.
    """
    output = Path(configuration.output.data)
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.parent / f".{output.name}.work"
    with full_disk_told(output.parent), _alone(output):
        report = _read_report(output)
        occupied = any(output.iterdir()) if output.is_dir() else output.exists()
        if occupied and report is None:
            raise ValueError(f"output.data={output} holds something else than a prepared corpus: name another folder")
        depends = _dependencies(configuration)
        if report is None or report["fingerprint"] != depends.fingerprint:
            new = _build(configuration, depends, output, work)
            if output.exists():
                output.rename(work / "old")
            new.rename(output)
        if work.exists():
            shutil.rmtree(work)
        prepared, page = Prepared.load(output), output / "report.html"
        if not page.exists():
            write_report_page(prepared.report, page)
        return prepared


def _build(configuration: Configuration, depends: Dependencies, output: Path, work: Path) -> Path:
    """The new folder, inside ``work``."""
    with Workers(configuration.preparation) as workers, _without_bars():
        old = _read_report(output)
        whole = old is not None and not _first_damaged(output, old)
        text = Text.load(output, depends.text_fingerprint) if whole else None
        if text:
            print(f"the text of {output} stays: only the tokenizer's settings have changed", file=sys.stderr)
        else:
            key = f"{depends.text_fingerprint} {configuration.preparation.shard_pairs}"
            text = select(configuration, _folder(work / "text", key), workers)
        encoding = _folder(work / "encoding", f"{depends.fingerprint} {text.splits}")
        tokenizers, warnings = learn(text, configuration, encoding)
        new, described = encode(text, tokenizers, configuration, encoding, workers)
    report = {"format": FORMAT, "fingerprint": depends.fingerprint, "sources": depends.sources}
    report |= text.report | described | {"stream_window": configuration.corpora.stream_window}
    report["corpora"] = [
        {"name": name_of(corpus)} | counts
        for corpus, counts in zip(configuration.corpora.each, text.report["corpora"], strict=True)
    ]
    report["warnings"] = text.warnings + warnings + advise(report)
    report["files"] = {path.name: _mark(path) for path in _data_files(new)}
    write_report_page(report, new / "report.html")
    for name, values in (("text", text.describe(depends.text_fingerprint)), ("report", report)):
        (new / f"{name}.json").write_text(json.dumps(values, ensure_ascii=False, indent=2), encoding="utf-8")
    return new


def _folder(path: Path, key: str) -> Path:
    """A folder with what an interrupted preparation has done for the same ``key``, and nothing else."""
    key_file = path / "key"
    if path.exists() and not (key_file.exists() and key_file.read_text(encoding="utf-8") == key):
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    key_file.write_text(key, encoding="utf-8")
    return path


def _read_report(folder: Path) -> dict | None:
    """That of a prepared corpus; ``ValueError`` where it is all that is missing."""
    path = folder / "report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        return report if report["format"] and report["fingerprint"] else None
    except (OSError, ValueError, KeyError, TypeError):
        if (folder / "text.json").exists():
            raise ValueError(_no_longer_whole(path)) from None
        return None


def _first_damaged(folder: Path, report: dict) -> Path | None:
    """A file of a prepared corpus that is missing, or that was not there before or not like that."""
    there = {path.name: _mark(path) for path in _data_files(folder)}
    written = report.get("files", there)
    return next((folder / name for name in sorted(written | there) if written.get(name) != there.get(name)), None)


def _data_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".arrow", ".model"))


def _mark(path: Path) -> list:
    """What a file is known by again at each start: its size, and the SHA-256 of a tokenizer, which is small."""
    return [path.stat().st_size, _hash_file(path, None) if path.suffix == ".model" else ""]


def _map(path: Path, tokenizers: Tokenizers) -> Dataset:
    """The rows of a file, which stay on the disk; ``ValueError`` where it has the right size and other bytes, as far as
    texts tell that are none, and ids that are of no piece."""
    try:
        rows = Dataset.from_file(str(path))
        rows.data.validate(full=True)
    except (pa.ArrowException, OSError):
        raise ValueError(_no_longer_whole(path)) from None
    for side, tokenizer in zip(SIDES, tokenizers, strict=True):
        ids = pc.min_max(pc.list_flatten(rows.data.column(f"{side}_ids"))).as_py()
        if ids["min"] is not None and not 0 <= ids["min"] <= ids["max"] < tokenizer.vocab_size:
            raise ValueError(_no_longer_whole(path))
    return rows


def _no_longer_whole(path: Path) -> str:
    return f"{path} is missing, or not as it was written: delete {path.parent}, and prepare again (scripts/prepare.py)"


def _dependencies(configuration: Configuration) -> Dependencies:
    corpora, cleaning, tokenizer = configuration.corpora, configuration.cleaning, configuration.tokenizer
    parts, paths = [], []
    for corpus in corpora.each:
        settings, files = identity(corpus)
        languages = [corpus.source_language, corpus.target_language]
        parts.append({"corpus": settings, "languages": languages, "cleaning": corpus.cleaning, "files": len(files)})
        paths += files
    num_files = len(paths)
    paths += map(Path, tokenizer.model)
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path} is a folder where a file is needed: name the file in it, or all as {path}/*")
    most = STREAM_HEAD if corpora.stream_window else None
    sources = [{"path": str(path), "bytes": path.stat().st_size, "sha256": _hash_file(path, most)} for path in paths]
    hashes = [source["sha256"] for source in sources]
    held_out = {
        f"{name}_size": getattr(corpora, f"{name}_size")
        for name in HELD_OUT
        if not any(getattr(corpus, name) for corpus in corpora.each)
    }
    of_text = {
        "format": FORMAT,
        "corpora": parts,
        "held_out": held_out | ({"split_seed": corpora.split_seed} if held_out else {}),
        "cleaning": dataclasses.asdict(cleaning),
        "files": hashes[:num_files],
    }
    if corpora.stream_window:
        of_text["stream"] = corpora.shares, [source["bytes"] for source in sources[:num_files]]
    # The same pieces are drawn from in training, whatever the regularisation.
    of_tokenizer = dataclasses.asdict(tokenizer) | {"model": len(tokenizer.model), "regularisation": None}
    of_all = of_text | {"tags": corpora.tags, "tokenizer": of_tokenizer, "files": hashes}
    return Dependencies(_hash(of_text), _hash(of_all), sources)


def _hash(settings: dict) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _hash_file(path: Path, most: int | None) -> str:
    """SHA-256 of a file, or of so many bytes at its beginning."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while (most is None or file.tell() < most) and (block := file.read(1 << 20)):
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
