"""The text of a prepared corpus, split by split: what tokenizers are learned from, and what is encoded.

A prepared folder holds it together with the ids, so that another vocabulary needs no corpus.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.data.arrow import map_arrow
from pipeline.data.splitting import TRAIN

SIDES = ("source", "target")


class TextShard(NamedTuple):
    """Pairs of one corpus in an Arrow file with the columns ``source`` and ``target``."""

    corpus: int
    """Its number."""

    path: Path
    pairs: int
    normalised: bool
    """Or else the text is as it was read."""

    verdicts: Path | None = None
    """A file of verdicts, where only the rows for training are meant."""

    first: int = 0
    """Where in it the verdicts on these rows begin."""

    def rows(self) -> np.ndarray:
        """The numbers of the rows that are meant."""
        num_rows = len(map_arrow(self.path))
        if self.verdicts is None:
            return np.arange(num_rows)
        return np.flatnonzero(np.load(self.verdicts, mmap_mode="r")[self.first : self.first + num_rows] == TRAIN)

    def batches(self) -> Iterator[tuple[list[str], list[str]]]:
        """Sources and targets, some thousands at a time."""
        rows, begin = self.rows(), 0
        for batch in map_arrow(self.path).to_batches():
            start, end = np.searchsorted(rows, (begin, begin + len(batch)))
            if end > start:
                some = pa.array(rows[start:end] - begin)
                yield tuple(batch[side].take(some).to_pylist() for side in SIDES)
            begin += len(batch)


class Text(NamedTuple):
    """All of it, with what there is to tell of how it was chosen."""

    splits: dict[str, list[TextShard]]
    """In the order in which they were read."""

    report: dict
    warnings: list[str]

    def describe(self, fingerprint: str) -> dict:
        """For JSON; ``load`` reads it beside the encoded shards."""
        shards = {name: [[shard.corpus, shard.pairs] for shard in shards] for name, shards in self.splits.items()}
        return {"fingerprint": fingerprint, "shards": shards, "report": self.report, "warnings": self.warnings}

    @classmethod
    def load(cls, folder: Path, fingerprint: str) -> "Text | None":
        """That of a prepared folder, if it is the text of this fingerprint and all there."""
        try:
            described = json.loads((folder / "text.json").read_text(encoding="utf-8"))
            if described["fingerprint"] != fingerprint:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        splits = {
            name: [
                TextShard(corpus, encoded_shard(folder, name, number), pairs, normalised=name == "train")
                for number, (corpus, pairs) in enumerate(shards)
            ]
            for name, shards in described["shards"].items()
        }
        there = all(shard.path.exists() for shards in splits.values() for shard in shards)
        return cls(splits, described["report"], described["warnings"]) if there else None


def encoded_shard(folder: Path, split: str, number: int) -> Path:
    """Where a prepared folder has it."""
    return folder / f"{split}-{number:05}.arrow"


class Sample(NamedTuple):
    """One side of every so-manieth pair, to be read as often as is needed."""

    shards: Iterable[TextShard]
    side: str
    step: int

    def __iter__(self) -> Iterator[str]:
        passed = 0
        for shard in self.shards:
            rows = shard.rows()
            sample = rows[-passed % self.step :: self.step]
            yield from map_arrow(shard.path)[self.side].take(sample).to_pylist()
            passed += len(rows)
