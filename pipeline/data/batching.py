"""Pairs of like length grouped into batches under a budget of padded tokens, and padded into tensors.

The plan of an epoch is a pure function of (lengths, corpora, budget, seed, epoch, batches per update): nothing is
stored, resuming is slicing, and so is sharing over ranks. Batches are planned in whole updates of ``world_size *
accumulate`` batches, so two processes train exactly like one that accumulates twice as many.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from pipeline.data.reading import Reading
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID


class Batch(NamedTuple):
    """One batch of pairs, and the number of target tokens its loss is divided by."""

    source: Tensor
    """[B, S]: pieces eos pad …"""

    target_in: Tensor
    """[B, T]: bos pieces pad …"""

    target_out: Tensor
    """[B, T]: pieces eos pad …"""

    update_tokens: float
    """Real target tokens, eos included, of the whole update: of all accumulated batches on all ranks."""


def pad_sources(ids: Sequence[Sequence[int]]) -> Tensor:
    """Encoder input [B, S] int64: every row's pieces, eos, then padding."""
    return _pad(ids, first=[], last=[EOS_ID])


def collate(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], update_tokens: float) -> Batch:
    """Pad pairs of (source, target) pieces. The decoder's input is its output moved by one, here and only here."""
    sources, targets = zip(*pairs, strict=True)
    return Batch(
        source=pad_sources(sources),
        target_in=_pad(targets, first=[BOS_ID], last=[]),
        target_out=_pad(targets, first=[], last=[EOS_ID]),
        update_tokens=update_tokens,
    )


def _pad(rows: Sequence[Sequence[int]], first: list[int], last: list[int]) -> Tensor:
    width = max(map(len, rows)) + len(first) + len(last)
    padded = np.full((len(rows), width), PAD_ID, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        end = len(first) + len(row)
        line[: len(first)] = first
        line[len(first) : end] = row
        line[end : end + len(last)] = last
    return torch.from_numpy(padded)


class Planned(NamedTuple):
    """A batch to be read."""

    rows: np.ndarray

    update_tokens: float
    """As of ``Batch``."""

    place: tuple[int, int, int] = (0, 0, 0)
    """Seed, epoch, and number of the batch in the epoch of all ranks."""


class TokenBudgetSampler(Sampler):
    """One rank's batches of one epoch, in order, as ``EncodedPairs`` takes them.

    Every rank gets the same number of batches, the same in all epochs; together they hold every row once, or as often
    as ``reads`` says (``Reading``). ``start`` begins at that batch of this rank's epoch and leaves the length as it is.
    Lengths are numbers of pieces.

    Raises ``ValueError`` where there are fewer rows than ranks.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        tokens_per_batch: int,
        seed: int,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        accumulate: int = 1,
        start: int = 0,
        corpus: np.ndarray | None = None,
        reads: Sequence[int] = (),
    ):
        self.plan = BatchPlan(source_lengths, target_lengths, tokens_per_batch, world_size, accumulate, corpus, reads)
        self.seed, self.epoch, self.start = seed, epoch, start
        self.rank, self.world_size, self.batches_per_update = rank, world_size, world_size * accumulate

    def __len__(self) -> int:
        return len(self.plan) // self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before every epoch; one that was resumed keeps its ``start``."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __iter__(self) -> Iterator[Planned]:
        random = np.random.default_rng([self.seed, self.epoch])
        batches, tokens = self.plan.batches(random, self.epoch)
        order = random.permutation(len(batches))
        update_tokens = np.add.reduceat(tokens[order], np.arange(0, len(order), self.batches_per_update))
        for number in range(self.start * self.world_size + self.rank, len(order), self.world_size):
            tokens = float(update_tokens[number // self.batches_per_update])
            yield Planned(batches[order[number]], tokens, (self.seed, self.epoch, number))


class BatchPlan:
    """Which rows form a batch; the number of batches is the same whatever the random numbers and the epoch.

    Rows are sorted by their longer side, then by the difference of the sides; a batch is a stretch of that order that
    fits the budget, rows times longest row with eos (bos) and padding counted. A row beyond the budget is a batch of
    its own. Only rows with equal lengths change places between epochs, so the stretches stay. Where an epoch reads a
    part of a corpus, they are those of the longest rows that it may read. The batches with the most rows are halved
    until whole updates of ``world_size * accumulate`` batches are full.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        tokens_per_batch: int,
        world_size: int = 1,
        accumulate: int = 1,
        corpus: np.ndarray | None = None,
        reads: Sequence[int] = (),
    ):
        """
        Args:
            corpus, reads: the corpus of each row, and how many rows of each an epoch reads; without them every row.
        """
        self.source = np.asarray(source_lengths, dtype=np.int64) + 1
        self.target = np.asarray(target_lengths, dtype=np.int64) + 1
        longest, difference = np.maximum(self.source, self.target), self.target - self.source
        # The difference rises and falls in turn, so that neighbours stay alike where the longest grows.
        self.sort_key = longest * (4 * longest.max(initial=0)) + np.where(longest % 2, difference, -difference)
        in_order = np.argsort(self.sort_key, kind="stable")
        if corpus is None:
            corpus, reads = np.zeros(len(longest), dtype=np.int64), [len(longest)]
        self.reading = Reading(in_order, corpus, reads)
        starts = _stretches(np.sort(longest[self.reading.last_rows()]), tokens_per_batch)
        self.starts = _fill_updates(starts, len(self.reading), world_size, accumulate)

    def __len__(self) -> int:
        return len(self.starts)

    def batches(self, random: np.random.Generator | None = None, epoch: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """The rows of each batch, short ones first, and its number of target tokens."""
        rows = self.reading.rows(epoch)
        if random is not None:
            rows = random.permutation(rows)
        rows = rows[np.argsort(self.sort_key[rows], kind="stable")]
        return np.split(rows, self.starts[1:]), np.add.reduceat(self.target[rows], self.starts)

    @property
    def padding_share(self) -> float:
        """Padding's share of all places in the batches, both sides counted."""
        batches, _ = self.batches()
        held = sum(len(rows) * (self.source[rows].max() + self.target[rows].max()) for rows in batches)
        rows = np.concatenate(batches)
        return 1 - (self.source[rows].sum() + self.target[rows].sum()) / held


def _stretches(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Where the longest stretches, taken greedily, begin, so that (number of rows) * (longest row) <= budget."""
    starts, start = [], 0
    while start < len(lengths):
        starts.append(start)
        window = lengths[start : start + max(1, budget // lengths[start])]
        fits = window * np.arange(1, len(window) + 1) <= budget
        start += len(window) if fits.all() else max(1, int(fits.argmin()))
    return np.array(starts, dtype=np.int64)


def _fill_updates(starts: np.ndarray, num_rows: int, world_size: int, accumulate: int) -> np.ndarray:
    """Halve stretches until they fill whole updates; too few rows for that are spread evenly over the ranks."""
    if num_rows < world_size:
        raise ValueError(f"{num_rows} pairs are too few for {world_size} devices: set trainer.devices={num_rows or 1}")
    per_update = world_size * accumulate
    num_batches = -(-len(starts) // per_update) * per_update
    if num_batches > num_rows:
        num_batches = num_rows // world_size * world_size
        return np.arange(num_batches) * num_rows // num_batches
    while len(starts) < num_batches:
        rows = np.diff(starts, append=num_rows)
        fullest = int(rows.argmax())
        starts = np.insert(starts, fullest + 1, starts[fullest] + rows[fullest] // 2)
    return starts
