"""The stages from corpora to encoded shards, each of which leaves files: what is there is not done again.

Each corpus is read into shards, and each shard cleaned, in any process, while others are read. What is dropped and what
is held out is decided on hashes of all pairs. Then tokenizers are learned from a sample, and each shard is encoded.
"""

import dataclasses
import sys
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.config import Configuration
from pipeline.data.advice import advise
from pipeline.data.arrow import map_arrow, write_arrow
from pipeline.data.cleaning import Cleaner, Report, normalise
from pipeline.data.config import CleaningConfig, CorpusConfig
from pipeline.data.corpora import SCHEMA, SPLITS, Shard, load
from pipeline.data.execution import Piece, Workers
from pipeline.data.near import NearOverlap, fold, similarities
from pipeline.data.progress import progress
from pipeline.data.report import describe
from pipeline.data.shards import (
    SIDES,
    Origin,
    clean_shard,
    encode_clean_shard,
    encode_raw_shard,
    find_near_overlap,
    read_json,
    write_json,
)
from pipeline.data.splitting import TRAIN, VERDICTS, Keys, decide, hash_texts
from pipeline.data.statistics import Statistics, TokenCounts
from pipeline.data.tokenizer import Tokenizers, train_tokenizers

HELD_OUT = SPLITS[1:]

FOR_ALL_CORPORA = (
    "unicode_form",
    "drop_duplicates",
    "drop_duplicate_sources",
    "drop_duplicate_targets",
    "near_duplicates",
    "drop_overlap",
    "near_overlap",
)
"""Settings of cleaning that one corpus cannot have for itself."""

AT_ONCE = 20_000
"""Pairs whose texts are compared together."""

T = TypeVar("T", Statistics, TokenCounts)


class CleanShard(NamedTuple):
    """A shard of the training data."""

    corpus: int
    raw: Shard
    report: Path
    """Of cleaning it; the pairs that were kept, and their keys, lie beside it."""

    @property
    def pairs(self) -> Path:
        return self.report.with_suffix(".arrow")

    @property
    def keys(self) -> Path:
        return self.report.with_suffix(".npy")


HeldOut = dict[str, list[tuple[int, Shard]]]
"""Raw shards of valid and test, each with the number of its corpus."""


def build(configuration: Configuration, work: Path, workers: Workers) -> tuple[Path, dict]:
    """The folder, inside ``work``, of the encoded splits and tokenizers, and a report.

    Raises:
        ValueError, OSError: as ``preparation.prepare`` does.
    """
    stages = Stages(configuration, work, workers)
    held_out = stages.read_held_out()
    stages.read_and_clean()
    overlap = stages.decide(held_out)
    for name in HELD_OUT:
        if name not in held_out:
            held_out[name] = stages.hold_out(name)
    stages.find_near_overlap(held_out)
    report = stages.count(held_out) | {"overlap": overlap}
    tokenizers = stages.learn()
    report |= stages.encode(held_out, tokenizers)
    report["warnings"] = stages.warnings + advise(report)
    return stages.new, report


class Stages:
    """The stages, in the order in which they are done."""

    def __init__(self, configuration: Configuration, work: Path, workers: Workers):
        self.configuration, self.work, self.workers = configuration, work, workers
        self.corpora = configuration.corpora.each
        self.cleaners = [
            Cleaner(cleaning, corpus.source_language, corpus.target_language)
            for corpus, cleaning in zip(self.corpora, cleaning_of_each(configuration), strict=True)
        ]
        self.cleaning = configuration.cleaning
        self.shards: list[CleanShard] = []
        self.firsts = [0]
        """The number of each shard's first pair among all that cleaning kept, and of these."""
        self.verdicts = np.zeros(0, dtype=np.uint8)
        """For each of them the place in ``VERDICTS``."""
        self.warnings: list[str] = []
        self.new = work / "new"
        for folder in ("clean", "held_out", "near_overlap", "tokenizers", "encoded", "new"):
            (work / folder).mkdir(parents=True, exist_ok=True)

    def read_held_out(self) -> HeldOut:
        """Valid and test, as far as the corpora name them."""
        return {
            name: [
                (number, shard)
                for number, corpus in enumerate(self.corpora)
                if getattr(corpus, name)
                for shard in self.load(number, name)
            ]
            for name in HELD_OUT
            if any(getattr(corpus, name) for corpus in self.corpora)
        }

    def load(self, number: int, split: str, advance: Callable[[int], None] = lambda count: None) -> Iterator[Shard]:
        folder = self.work / "raw" / f"{split}-{number}"
        return load(self.corpora[number], split, folder, self.configuration.preparation.shard_pairs, advance)

    def read_and_clean(self) -> None:
        def pieces(advance: Callable[[int], None]) -> Iterator[Piece]:
            for number, cleaner in enumerate(self.cleaners):
                for raw in self.load(number, "train", advance):
                    report = self.work / "clean" / f"{len(self.shards):05}.json"
                    self.shards.append(CleanShard(number, raw, report))
                    yield Piece(clean_shard, (raw.path, cleaner, self.cleaning.near_duplicates), report, raw.rows)

        with progress("reading and cleaning") as advance:
            self.workers.do(pieces(advance))
        for shard in self.shards:
            self.firsts.append(self.firsts[-1] + read_json(shard.report)["pairs"])

    def decide(self, held_out: HeldOut) -> dict[str, int]:
        """Find the verdicts; how many pairs share a side with each held-out split."""
        decision = self.work / "decision.json"
        if not decision.exists():
            keys = self.keys()
            hashes = {
                name: np.concatenate([hash_texts(texts) for texts in self.folded(shards)])
                for name, shards in held_out.items()
            }
            with self.warnings_kept():
                verdicts, overlap = decide(
                    Keys(*keys[: len(Keys._fields)]),
                    hashes,
                    self.configuration.corpora,
                    self.cleaning,
                    self.work,
                    keys[len(Keys._fields) :],
                    self.alike,
                )
            np.save(self.work / "decided.npy", verdicts)
            write_json({"overlap": overlap, "warnings": self.warnings}, decision)
        self.verdicts = np.load(self.work / "decided.npy")
        self.warnings = read_json(decision)["warnings"]
        return read_json(decision)["overlap"]

    def keys(self) -> np.ndarray:
        """The keys of all shards side by side, in a file."""
        shape = len(np.load(self.shards[0].keys, mmap_mode="r")), self.firsts[-1]
        keys = np.lib.format.open_memmap(self.work / "keys.npy", "w+", np.uint64, shape)
        for shard, first in zip(self.shards, self.firsts, strict=False):
            some = np.load(shard.keys)
            keys[:, first : first + some.shape[1]] = some
        return keys

    def folded(self, shards: Iterable[tuple[int, Shard]]) -> Iterator[list[str]]:
        """The texts of raw shards as they are compared, some thousands at a time."""
        for _, shard in shards:
            for batch in map_arrow(shard.path).to_batches():
                for side in SIDES:
                    texts = (normalise(text, self.cleaning.unicode_form) for text in batch[side].to_pylist())
                    yield [fold(text) for text in texts if text]

    def alike(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Whether both sides of pairs are as alike to those of others as near duplicates are."""
        mask = np.ones(len(rows), dtype=bool)
        for begin in range(0, len(rows), AT_ONCE):
            couple = [self.pairs(some[begin : begin + AT_ONCE]) for some in (rows, others)]
            for side in SIDES:
                ones, other_ones = (list(map(fold, pairs[side].to_pylist())) for pairs in couple)
                mask[begin : begin + AT_ONCE] &= similarities(ones, other_ones) >= self.cleaning.near_duplicates
        return mask

    def pairs(self, rows: np.ndarray) -> pa.Table:
        """Cleaned pairs by their numbers."""
        order = np.argsort(rows)
        ends = np.searchsorted(rows[order], self.firsts)
        some = [
            map_arrow(self.shards[number].pairs).take(rows[order[begin:end]] - self.firsts[number])
            for number, (begin, end) in enumerate(pairwise(ends))
            if end > begin
        ]
        return pa.concat_tables(some).take(np.argsort(order))

    def find_near_overlap(self, held_out: HeldOut) -> None:
        """Turn down the pairs with a side that is nearly a held-out one."""
        texts = [text for shards in held_out.values() for some in self.folded(shards) for text in some]
        if self.cleaning.near_overlap and texts:
            near_overlap = NearOverlap(texts, self.cleaning.near_overlap)
            pieces = [
                Piece(
                    find_near_overlap,
                    (shard.pairs, self.work / "decided.npy", first, near_overlap),
                    self.work / "near_overlap" / f"{number:05}.npy",
                    len(verdicts),
                )
                for number, (shard, first, verdicts) in enumerate(self.judged())
            ]
            with progress("comparing with valid and test", self.firsts[-1]) as advance:
                files = self.workers.do(pieces, advance)
            for file, first in zip(files, self.firsts, strict=False):
                near = first + np.flatnonzero(np.load(file))
                self.verdicts[near] = VERDICTS.index("near_overlap")
        np.save(self.work / "verdicts.npy", self.verdicts)

    def hold_out(self, name: str) -> list[tuple[int, Shard]]:
        """The pairs of the training data that were chosen, as they were read: a shard for each corpus."""
        tables: list[list[pa.Table]] = [[] for _ in self.corpora]
        for shard, _, verdicts in self.judged():
            chosen = np.flatnonzero(verdicts == VERDICTS.index(name))
            if len(chosen):
                rows = map_arrow(shard.pairs)["row"].take(chosen)
                tables[shard.corpus].append(map_arrow(shard.raw.path).take(rows))
        held_out = []
        for number, of_corpus in enumerate(tables):
            path = self.work / "held_out" / f"{name}-{number}.arrow"
            columns = (batch.columns for table in of_corpus for batch in table.to_batches())
            held_out.append((number, Shard(path, write_arrow(path, SCHEMA, columns))))
        return held_out

    def judged(self) -> Iterator[tuple[CleanShard, int, np.ndarray]]:
        """Each shard with the number of its first pair and the verdicts on its pairs."""
        for shard, first, end in zip(self.shards, self.firsts, self.firsts[1:], strict=False):
            yield shard, first, self.verdicts[first:end]

    def count(self, held_out: HeldOut) -> dict:
        """What was read and what was dropped, with examples.

        Raises:
            ValueError: nothing is left to train on.
        """
        reports = [Report() for _ in self.corpora]
        read, kept = [0 for _ in self.corpora], [0 for _ in self.corpora]
        for shard, _, verdicts in self.judged():
            report = Report.from_dict(read_json(shard.report)["cleaning"])
            for place in range(len(SPLITS), len(VERDICTS)):
                rows = np.flatnonzero(verdicts == place)
                if len(rows):
                    report.dropped[VERDICTS[place]] = len(rows)
                    some = map_arrow(shard.pairs).take(rows[:3]).to_pydict()
                    cut = ([text[:200] for text in some[side]] for side in SIDES)
                    report.examples[VERDICTS[place]] = list(zip(*cut, strict=True))
            reports[shard.corpus] += report
            read[shard.corpus] += shard.raw.rows
            kept[shard.corpus] += int(np.count_nonzero(verdicts == TRAIN))
        total = Report()
        for report in reports:
            total += report
        num_held_out = {name: sum(shard.rows for _, shard in shards) for name, shards in held_out.items()}
        if not sum(kept):
            others = ", ".join(f"{num_held_out[name]} {name}" for name in HELD_OUT)
            raise ValueError(
                f"0 of {sum(read)} pairs left to train on ({total}; {others}): look at the corpus, or relax cleaning"
            )
        if total.with_controls:
            self.warnings.append(f"control characters removed from {total.with_controls} of {sum(read)} pairs")
        return total.as_dict() | {
            "read": {"train": sum(read)} | num_held_out,
            "corpora": [
                {
                    "name": name_of(corpus),
                    "read": read[number],
                    "pairs": kept[number],
                    "dropped": dict(reports[number].dropped),
                    "repaired": dict(reports[number].repaired),
                }
                for number, corpus in enumerate(self.corpora)
            ],
        }

    def learn(self) -> Tokenizers:
        """The tokenizers, learned from a sample of what is left to train on."""
        done = self.work / "tokenizers.json"
        config, corpora = self.configuration.tokenizer, self.configuration.corpora
        if not done.exists():
            num_pairs = int(np.count_nonzero(self.verdicts == TRAIN))
            step = max(1, -(-num_pairs // config.sample_pairs)) if config.sample_pairs else 1
            languages = list(dict.fromkeys(corpus.target_language for corpus in self.corpora)) if corpora.tags else []
            if not config.model:
                print(f"learning a vocabulary from {-(-num_pairs // step):,} pairs", file=sys.stderr)
            before = len(self.warnings)
            with self.warnings_kept():
                tokenizers = train_tokenizers(*(Sample(self, side, step) for side in SIDES), config, languages)
            tokenizers.save(self.work / "tokenizers")
            write_json({"warnings": self.warnings[before:]}, done)
            del self.warnings[before:]
        self.warnings += read_json(done)["warnings"]
        return Tokenizers.load(self.work / "tokenizers")

    def encode(self, held_out: HeldOut, tokenizers: Tokenizers) -> dict:
        """Write all splits; numbers about them."""
        folder = self.work / "tokenizers"
        pieces: dict[str, list[Piece]] = {}

        def add(split: str, number: int, function: Callable, arguments: tuple, pairs: int) -> None:
            of_split = pieces.setdefault(split, [])
            name = f"{split}-{len(of_split):05}"
            language = self.corpora[number].target_language if self.configuration.corpora.tags else ""
            arguments = (*arguments, Origin(number, language), folder, self.new / f"{name}.arrow")
            of_split.append(Piece(function, arguments, self.work / "encoded" / f"{name}.json", pairs))

        for shard, first, verdicts in self.judged():
            arguments = (shard.pairs, self.work / "verdicts.npy", first)
            add("train", shard.corpus, encode_clean_shard, arguments, int(np.count_nonzero(verdicts == TRAIN)))
        for name in HELD_OUT:
            for number, shard in held_out[name]:
                add(name, number, encode_raw_shard, (shard.path, self.cleaning.unicode_form), shard.rows)

        numbers = {}
        for split, of_split in pieces.items():
            with progress(f"encoding {split}", sum(piece.pairs for piece in of_split)) as advance:
                numbers[split] = [read_json(path) for path in self.workers.do(of_split, advance)]
        tokenizers.save(self.new)
        languages = {
            side: list(dict.fromkeys(getattr(corpus, f"{side}_language") for corpus in self.corpora)) for side in SIDES
        }
        statistics = {
            name: total(Statistics, [part["statistics"] for part in parts]) for name, parts in numbers.items()
        }
        tokens = {
            name: {side: total(TokenCounts, [part["tokens"][side] for part in parts]) for side in SIDES}
            for name, parts in numbers.items()
        }
        return describe(statistics, tokens, tokenizers, languages, self.of_corpora(numbers["train"])) | {
            "pairs": {name: sum(part["pairs"] for part in parts) for name, parts in numbers.items()},
            "tokenizer": dataclasses.asdict(self.configuration.tokenizer)
            | {
                "vocab_size": [tokenizer.vocab_size for tokenizer in tokenizers[: 1 if tokenizers.joint else 2]],
                "unicode_form": self.cleaning.unicode_form,
            },
        }

    def of_corpora(self, numbers: list[dict]) -> list[tuple[dict[str, list[str]], Statistics]]:
        """The languages of each of several corpora, and the statistics of its training data."""
        described = []
        for number, corpus in enumerate(self.corpora if len(self.corpora) > 1 else []):
            parts = [part for part, shard in zip(numbers, self.shards, strict=True) if shard.corpus == number]
            languages = {side: [getattr(corpus, f"{side}_language")] for side in SIDES}
            described.append((languages, total(Statistics, [part["statistics"] for part in parts])))
        return described

    @contextmanager
    def warnings_kept(self) -> Iterator[None]:
        """Warnings are issued as ever, and kept for the report."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        self.warnings += [str(warning.message) for warning in caught if warning.category is UserWarning]


class Sample(NamedTuple):
    """One side of every so-manieth pair that is left to train on, to be read as often as is needed."""

    stages: Stages
    side: str
    step: int

    def __iter__(self) -> Iterator[str]:
        passed = 0
        for shard, _, verdicts in self.stages.judged():
            rows = np.flatnonzero(verdicts == TRAIN)
            sample = rows[-passed % self.step :: self.step]
            yield from map_arrow(shard.pairs)[self.side].take(sample).to_pylist()
            passed += len(rows)


def total(kind: type[T], parts: Iterable[dict]) -> T:
    """The sum of what files hold."""
    first, *others = map(kind.from_dict, parts)
    for other in others:
        first += other
    return first


def name_of(corpus: CorpusConfig) -> str:
    """What a report calls it."""
    files = [Path(name).name for name in corpus.train]
    return corpus.name or corpus.package or " ".join(files[:2]) + " …" * (len(files) > 2) or corpus.kind


def cleaning_of_each(configuration: Configuration) -> list[CleaningConfig]:
    """The settings of cleaning for each corpus.

    Raises:
        ValueError: a corpus has a setting that is none, or none of its own.
    """
    hints = typing.get_type_hints(CleaningConfig)
    settings = []
    for number, corpus in enumerate(configuration.corpora.each):
        place = f"corpora.parts[{number}].cleaning" if configuration.corpora.parts else "corpora.cleaning"
        for name, value in corpus.cleaning.items():
            if name not in hints:
                raise ValueError(f"{place}: {name} is no setting of cleaning: choose among {', '.join(hints)}")
            if name in FOR_ALL_CORPORA:
                raise ValueError(f"{place}: {name} is the same for all corpora: set cleaning.{name}={value}")
            allowed = typing.get_args(hints[name])
            kinds = (float, int) if hints[name] is float else (hints[name],)
            if value not in allowed if allowed else type(value) not in kinds:
                wanted = " or ".join(allowed) or f"a value of type {hints[name].__name__}"
                raise ValueError(f"{place}: {name}={value} must be {wanted}")
        settings.append(dataclasses.replace(configuration.cleaning, **corpus.cleaning))
    return settings
