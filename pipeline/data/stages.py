"""The stages from corpora to the text of each split, each of which leaves files: what is there is not done again.

Each corpus is read into shards, and each shard cleaned, in any process, while others are read. What is dropped and what
is held out is decided on hashes of all pairs.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.config import Configuration
from pipeline.data.arrow import map_arrow, write_arrow
from pipeline.data.clean_pairs import CleanPairs, CleanShard
from pipeline.data.cleaning import Cleaner, Report, normalise
from pipeline.data.config import CorpusConfig
from pipeline.data.corpora import SCHEMA, SPLITS, Shard, load
from pipeline.data.execution import Piece, Workers
from pipeline.data.near import NearOverlap, fold
from pipeline.data.notices import warnings_kept
from pipeline.data.progress import progress
from pipeline.data.shards import clean_shard, find_near_overlap, read_json, write_array, write_json
from pipeline.data.splitting import TRAIN, VERDICTS, Keys, decide, hash_texts
from pipeline.data.text import SIDES, Text, TextShard

HELD_OUT = SPLITS[1:]

RawShards = Iterable[tuple[int, Shard]]
"""Raw shards, each with the number of its corpus."""

HeldOut = dict[str, list[tuple[int, Shard]]]
"""Those of valid and of test."""


def select(configuration: Configuration, folder: Path, workers: Workers) -> Text:
    """The text that is trained on and the text that is held out, with ``folder`` for files in between.

    Raises:
        ValueError, OSError: as ``preparation.prepare`` does.
    """
    stages = Stages(configuration, folder, workers)
    held_out = stages.read_held_out()
    stages.read_and_clean()
    stages.decide(held_out)
    held_out |= {name: stages.hold_out(name) for name in HELD_OUT if name not in held_out}
    stages.find_near_overlap(held_out)
    return stages.text(held_out)


class Stages:
    """The stages, in the order in which they are done."""

    def __init__(self, configuration: Configuration, folder: Path, workers: Workers):
        self.configuration, self.folder, self.workers = configuration, folder, workers
        self.cleaning = configuration.cleaning
        self.corpora = configuration.corpora.each
        self.cleaners = [
            Cleaner(cleaning, corpus.source_language, corpus.target_language)
            for corpus, cleaning in zip(
                self.corpora, configuration.corpora.cleaning_of_each(self.cleaning), strict=True
            )
        ]
        self.pairs = CleanPairs([])
        """What cleaning kept."""
        self.verdicts = np.zeros(0, dtype=np.uint8)
        """For each of them the place in ``VERDICTS``."""
        self.overlap: dict[str, int] = {}
        """How many of them share a side with each held-out split."""
        self.warnings: list[str] = []
        for name in ("clean", "held_out", "near_overlap"):
            (folder / name).mkdir(parents=True, exist_ok=True)

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
        folder, corpora = self.folder / "raw" / f"{split}-{number}", self.configuration.corpora
        most = corpora.shares[number] if corpora.stream_window and split == "train" else None
        return load(self.corpora[number], split, folder, self.configuration.preparation.shard_pairs, advance, most)

    def read_and_clean(self) -> None:
        with progress("reading and cleaning") as advance:
            numbers = range(len(self.corpora))
            self.clean((number, shard) for number in numbers for shard in self.load(number, "train", advance))

    def clean(self, raw: RawShards) -> None:
        """Clean shards while later ones are read."""
        shards: list[CleanShard] = []

        def pieces() -> Iterator[Piece]:
            for number, shard in raw:
                report = self.folder / "clean" / f"{len(shards):05}.json"
                shards.append(CleanShard(number, shard, report))
                arguments = (shard.path, self.cleaners[number], self.cleaning.near_duplicates)
                yield Piece(clean_shard, arguments, report, shard.rows)

        self.workers.do(pieces())
        self.pairs = CleanPairs(shards)

    def decide(self, held_out: HeldOut) -> None:
        """Find the verdicts, and what is not held out yet among them."""
        decision = self.folder / "decision.json"
        if not decision.exists():
            keys = self.pairs.keys(self.folder / "keys.npy")
            hashes = {
                name: np.concatenate([hash_texts(texts) for texts in self.folded(shards)])
                for name, shards in held_out.items()
            }
            with warnings_kept() as warnings:
                verdicts, overlap = decide(
                    Keys(*keys[: len(Keys._fields)]),
                    hashes,
                    self.configuration.corpora,
                    self.cleaning,
                    self.folder,
                    keys[len(Keys._fields) :],
                    lambda rows, others: self.pairs.alike(rows, others, self.cleaning.near_duplicates),
                )
            write_array(verdicts, self.folder / "decided.npy")
            write_json({"overlap": overlap, "warnings": warnings}, decision)
        self.verdicts = np.load(self.folder / "decided.npy")
        self.overlap, self.warnings = (read_json(decision)[name] for name in ("overlap", "warnings"))

    def folded(self, shards: RawShards) -> Iterator[list[str]]:
        """The texts of raw shards as they are compared, some thousands at a time."""
        for _, shard in shards:
            for batch in map_arrow(shard.path).to_batches():
                for side in SIDES:
                    texts = (normalise(text, self.cleaning.unicode_form) for text in batch[side].to_pylist())
                    yield [fold(text) for text in texts if text]

    def hold_out(self, name: str) -> list[tuple[int, Shard]]:
        """The pairs of the training data that were chosen, as they were read: a shard for each corpus."""
        tables: list[list[pa.Table]] = [[] for _ in self.corpora]
        for shard, _, verdicts in self.pairs.with_values(self.verdicts):
            chosen = np.flatnonzero(verdicts == VERDICTS.index(name))
            if len(chosen):
                rows = map_arrow(shard.pairs)["row"].take(chosen)
                tables[shard.corpus].append(map_arrow(shard.raw.path).take(rows))
        held_out = []
        for number, of_corpus in enumerate(tables):
            path = self.folder / "held_out" / f"{name}-{number}.arrow"
            columns = (batch.columns for table in of_corpus for batch in table.to_batches())
            held_out.append((number, Shard(path, write_arrow(path, SCHEMA, columns))))
        return held_out

    def find_near_overlap(self, held_out: HeldOut) -> None:
        """Turn down the pairs with a side that is nearly a held-out one."""
        texts = [text for shards in held_out.values() for some in self.folded(shards) for text in some]
        if self.cleaning.near_overlap and texts:
            near_overlap = NearOverlap(texts, self.cleaning.near_overlap)
            judged = list(self.pairs.with_values(self.verdicts))
            pieces = [
                Piece(
                    find_near_overlap,
                    (shard.pairs, self.folder / "decided.npy", first, near_overlap),
                    self.folder / "near_overlap" / f"{number:05}.npy",
                    len(verdicts),
                )
                for number, (shard, first, verdicts) in enumerate(judged)
            ]
            with progress("comparing with valid and test", len(self.pairs)) as advance:
                files = self.workers.do(pieces, advance)
            for file, (_, _, verdicts) in zip(files, judged, strict=True):
                verdicts[np.load(file)] = VERDICTS.index("near_overlap")
        write_array(self.verdicts, self.folder / "verdicts.npy")

    def kept(self) -> list[TextShard]:
        """What is left of each shard to train on."""
        file = self.folder / "verdicts.npy"
        return [
            TextShard(shard.corpus, shard.pairs, int(np.count_nonzero(verdicts == TRAIN)), True, file, first)
            for shard, first, verdicts in self.pairs.with_values(self.verdicts)
        ]

    def text(self, held_out: HeldOut) -> Text:
        """What is left to train on, and what is held out; what was read and what was dropped, with examples.

        Raises:
            ValueError: nothing is left to train on.
        """
        splits = {"train": self.kept()}
        reports, read = [Report() for _ in self.corpora], [0 for _ in self.corpora]
        for shard, _, verdicts in self.pairs.with_values(self.verdicts):
            reports[shard.corpus] += of_shard(shard, verdicts)
            read[shard.corpus] += shard.raw.rows
        for name in HELD_OUT:
            splits[name] = [TextShard(number, shard.path, shard.rows, False) for number, shard in held_out[name]]
        total = Report()
        for report in reports:
            total += report
        pairs = {name: sum(shard.pairs for shard in shards) for name, shards in splits.items()}
        if not pairs["train"]:
            others = ", ".join(f"{pairs[name]} {name}" for name in HELD_OUT)
            raise ValueError(
                f"0 of {sum(read)} pairs left to train on ({total}; {others}): look at the corpus, or relax cleaning"
            )
        controls = f"control characters removed from {total.with_controls} of {sum(read)} pairs"
        of_corpora = [
            {
                "read": read[number],
                "pairs": sum(shard.pairs for shard in splits["train"] if shard.corpus == number),
                "dropped": dict(report.dropped),
                "repaired": dict(report.repaired),
            }
            for number, report in enumerate(reports)
        ]
        report = total.as_dict() | {
            "read": pairs | {"train": sum(read)},
            "corpora": of_corpora,
            "overlap": self.overlap,
        }
        return Text(splits, report, self.warnings + [controls] * bool(total.with_controls))


def of_shard(shard: CleanShard, verdicts: np.ndarray) -> Report:
    """What cleaning dropped of it, and the verdicts did."""
    report = Report.from_dict(read_json(shard.report)["cleaning"])
    for place in range(len(SPLITS), len(VERDICTS)):
        rows = np.flatnonzero(verdicts == place)
        if len(rows):
            report.dropped[VERDICTS[place]] = len(rows)
            some = map_arrow(shard.pairs).take(rows[:3]).to_pydict()
            cut = ([text[:200] for text in some[side]] for side in SIDES)
            report.examples[VERDICTS[place]] = list(zip(*cut, strict=True))
    return report


def name_of(corpus: CorpusConfig) -> str:
    """What a report calls it."""
    files = [Path(name).name for name in corpus.train]
    return corpus.name or corpus.package or " ".join(files[:2]) + " …" * (len(files) > 2) or corpus.kind
