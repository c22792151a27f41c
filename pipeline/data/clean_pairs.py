"""All pairs that cleaning kept, in the order in which they were read, in shards on the disk."""

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.data.arrow import map_arrow
from pipeline.data.corpora import Shard
from pipeline.data.near import fold, similarities
from pipeline.data.shards import read_json
from pipeline.data.text import SIDES

AT_ONCE = 20_000
"""Pairs whose texts are compared together."""


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


class CleanPairs:
    """The shards behind each other; a pair is known by its number among all."""

    def __init__(self, shards: list[CleanShard]):
        self.shards = shards
        self.firsts = [0, *accumulate(read_json(shard.report)["pairs"] for shard in shards)]
        """The number of each shard's first pair, and of all pairs."""

    def __len__(self) -> int:
        return self.firsts[-1]

    def with_values(self, values: np.ndarray) -> Iterator[tuple[CleanShard, int, np.ndarray]]:
        """Each shard, the number of its first pair, and what one value for each of all pairs says of its own."""
        for shard, (first, end) in zip(self.shards, pairwise(self.firsts), strict=True):
            yield shard, first, values[first:end]

    def keys(self, path: Path) -> np.ndarray:
        """The keys [kinds, pairs] of all shards side by side, in a file.

        It is written from its beginning to its end: a full disk kills whoever writes to a map of a file with holes.
        """
        shape = len(np.load(self.shards[0].keys, mmap_mode="r")), len(self)
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint64)), "fortran_order": False, "shape": shape}
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for kind in range(shape[0]):
                for shard in self.shards:
                    file.write(np.load(shard.keys, mmap_mode="r")[kind].tobytes())
        return np.load(path, mmap_mode="r")

    def take(self, rows: np.ndarray) -> pa.Table:
        """Pairs by their numbers."""
        order = np.argsort(rows)
        ends = np.searchsorted(rows[order], self.firsts)
        some = [
            map_arrow(self.shards[number].pairs).take(rows[order[begin:end]] - self.firsts[number])
            for number, (begin, end) in enumerate(pairwise(ends))
            if end > begin
        ]
        return pa.concat_tables(some).take(np.argsort(order))

    def alike(self, rows: np.ndarray, others: np.ndarray, least: float) -> np.ndarray:
        """Whether both sides of pairs are as alike as ``least`` to those of others."""
        mask = np.ones(len(rows), dtype=bool)
        for begin in range(0, len(rows), AT_ONCE):
            couple = [self.take(some[begin : begin + AT_ONCE]) for some in (rows, others)]
            for side in SIDES:
                ones, other_ones = (list(map(fold, pairs[side].to_pylist())) for pairs in couple)
                mask[begin : begin + AT_ONCE] &= similarities(ones, other_ones) >= least
        return mask
