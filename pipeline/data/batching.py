"""Pairs of like length grouped into batches under a budget of padded tokens, and padded into tensors.

The plan of an epoch is a pure function of (lengths, budget, seed, epoch, batches per update): nothing is stored,
resuming is slicing, and so is sharing over ranks. Batches are planned in whole updates of ``world_size * accumulate``
batches, so two processes train exactly like one that accumulates twice as many.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

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


class TokenBudgetSampler(Sampler):
    """One rank's batches of one epoch, in order: (rows, update_tokens), as ``EncodedPairs`` takes them.

    Every rank gets the same number of batches, the same in all epochs; together they hold every row once. ``start``
    begins at that batch of this rank's epoch and leaves the length as it is. Lengths are numbers of pieces.

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
    ):
        self.plan = BatchPlan(source_lengths, target_lengths, tokens_per_batch, world_size, accumulate)
        self.seed, self.epoch, self.start = seed, epoch, start
        self.rank, self.world_size, self.batches_per_update = rank, world_size, world_size * accumulate

    def __len__(self) -> int:
        return len(self.plan) // self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before every epoch; one that was resumed keeps its ``start``."""
        if epoch != self.epoch:
            self.epoch, self.start = epoch, 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, float]]:
        random = np.random.default_rng([self.seed, self.epoch])
        batches, tokens = self.plan.batches(random)
        order = random.permutation(len(batches))
        update_tokens = np.add.reduceat(tokens[order], np.arange(0, len(order), self.batches_per_update))
        for place in range(self.start * self.world_size + self.rank, len(order), self.world_size):
            yield batches[order[place]], float(update_tokens[place // self.batches_per_update])


class BatchPlan:
    """Which rows form a batch; the number of batches is the same whatever the random numbers.

    Rows are sorted by their longer side, then by the difference of the sides; a batch is a stretch of that order that
    fits the budget, rows times longest row with eos (bos) and padding counted. A row beyond the budget is a batch of
    its own. Only rows with equal lengths change places between epochs, so the stretches stay. The batches with the
    most rows are halved until whole updates of ``world_size * accumulate`` batches are full.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        tokens_per_batch: int,
        world_size: int = 1,
        accumulate: int = 1,
    ):
        self.source = np.asarray(source_lengths, dtype=np.int64) + 1
        self.target = np.asarray(target_lengths, dtype=np.int64) + 1
        longest, difference = np.maximum(self.source, self.target), self.target - self.source
        # The difference rises and falls in turn, so that neighbours stay alike where the longest grows.
        self.sort_key = longest * (4 * longest.max(initial=0)) + np.where(longest % 2, difference, -difference)
        in_order = np.argsort(self.sort_key, kind="stable")
        starts = _stretches(longest[in_order], tokens_per_batch)
        self.starts = _fill_updates(starts, len(in_order), world_size, accumulate)

    def __len__(self) -> int:
        return len(self.starts)

    def batches(self, random: np.random.Generator | None = None) -> tuple[list[np.ndarray], np.ndarray]:
        """The rows of each batch, short ones first, and its number of target tokens."""
        order = np.arange(len(self.sort_key)) if random is None else random.permutation(len(self.sort_key))
        order = order[np.argsort(self.sort_key[order], kind="stable")]
        return np.split(order, self.starts[1:]), np.add.reduceat(self.target[order], self.starts)

    @property
    def padding_share(self) -> float:
        """Padding's share of all places in the batches, both sides counted."""
        batches, _ = self.batches()
        held = sum(len(rows) * (self.source[rows].max() + self.target[rows].max()) for rows in batches)
        return 1 - (self.source.sum() + self.target.sum()) / held


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
