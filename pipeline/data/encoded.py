"""Encoded pairs as batches: as they stand in the Arrow file, or cut into other pieces each time they are read."""

import math
import random

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset

from pipeline.data.batching import Batch, Planned, collate
from pipeline.data.regularisation import sampler
from pipeline.data.tokenizer import Tokenizers

MEASURED = 1000
"""Pairs that are cut otherwise once, to see how long others will become."""

COMMON = 0.95
"""Share of the pairs that batches have room for when they are cut otherwise."""


class EncodedPairs(torch.utils.data.Dataset):
    """The pairs whose sides are not too long. An item is a whole batch, ``pairs[planned]``; the ids stay in the
    memory-mapped file, which workers and ranks share."""

    def __init__(self, encoded: Dataset, max_source: float = math.inf, max_target: float = math.inf):
        self.arguments = (encoded, max_source, max_target)
        self.source, self.target = (IdLists(encoded.data.column(f"{side}_ids")) for side in ("source", "target"))
        self.rows = np.flatnonzero((self.source.lengths <= max_source) & (self.target.lengths <= max_target))
        self.source_lengths = self.source.lengths[self.rows]
        self.target_lengths = self.target.lengths[self.rows]
        self.corpus = np.zeros(len(self.rows), dtype=np.int32)
        if "corpus" in encoded.column_names:
            self.corpus = encoded.data.column("corpus").to_numpy()[self.rows]

    def __reduce__(self):
        return type(self), self.arguments  # a worker maps the file instead of receiving the ids

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: Planned) -> Batch:
        rows = self.rows[batch.rows]
        return collate(list(zip(self.source[rows], self.target[rows], strict=True)), batch.update_tokens)


class ResegmentedPairs(EncodedPairs):
    """The same, cut otherwise each time, by random numbers that depend on the batch's place alone.

    ``source_lengths`` and ``target_lengths`` are those that ``COMMON`` pairs keep to. A text that comes out longer than
    its batch has room for, or than ``max_source`` or ``max_target``, is left cut in the best way: batches never exceed
    their budget. ``update_tokens`` is what an update has on average, since no rank cuts what others read.
    """

    def __init__(
        self,
        encoded: Dataset,
        max_source: float,
        max_target: float,
        tokenizers: Tokenizers,
        regularisation: float,
        tokens_per_batch: int,
    ):
        super().__init__(encoded, max_source, max_target)
        self.arguments += (tokenizers, regularisation, tokens_per_batch)
        self.texts = [Texts(encoded.data.column(side)) for side in ("source", "target")]
        self.samplers = [sampler(tokenizers.source, regularisation)] * 2
        if not tokenizers.joint:
            self.samplers[1] = sampler(tokenizers.target, regularisation)
        self.tags = frozenset(tokenizers.source.tags.values())
        self.limits, self.tokens_per_batch = (max_source, max_target), tokens_per_batch

        measured = self.rows[:: max(1, len(self.rows) // MEASURED)]
        lengths = [np.array(list(map(len, side))) for side in self._resegmented(measured, seed="measured")]
        best = self.source.lengths[measured], self.target.lengths[measured]
        growth = [
            max(1.0, np.quantile(new / np.maximum(old, 1), COMMON)) for new, old in zip(lengths, best, strict=True)
        ]
        self.source_lengths = np.ceil(self.source_lengths * growth[0]).astype(np.int64)
        self.target_lengths = np.ceil(self.target_lengths * growth[1]).astype(np.int64)
        self.share = float((lengths[1] + 1).sum() / (np.ceil(best[1] * growth[1]) + 1).sum())
        """Of the target tokens planned for, there are as many on average."""

    def __getitem__(self, batch: Planned) -> Batch:
        rows = self.rows[batch.rows]
        room = self.tokens_per_batch // len(rows) - 1
        sides = []
        resegmented = self._resegmented(rows, seed=repr(batch.place))
        for best, new, limit in zip((self.source[rows], self.target[rows]), resegmented, self.limits, strict=True):
            longest = min(limit, max(room, *map(len, best)))
            sides.append([ids if len(ids) <= longest else shorter for ids, shorter in zip(new, best, strict=True)])
        return collate(list(zip(*sides, strict=True)), batch.update_tokens * self.share)

    def _resegmented(self, rows: np.ndarray, seed: str) -> list[list[list[int]]]:
        """Both sides' ids; a tag stays before the source."""
        draw = random.Random(seed).random
        sources, targets = (
            [sample(text, draw) for text in texts[rows]]
            for texts, sample in zip(self.texts, self.samplers, strict=True)
        )
        tags = [[ids[0]] if len(ids) and ids[0] in self.tags else [] for ids in self.source[rows]]
        return [[tag + ids for tag, ids in zip(tags, sources, strict=True)], targets]


class Column:
    """A column that lies in memory chunk after chunk."""

    def __init__(self, column: pa.ChunkedArray):
        self.chunks = column.chunks
        self.first_rows = np.cumsum([0] + [len(chunk) for chunk in column.chunks])

    def chunk_of(self, rows: np.ndarray) -> np.ndarray:
        """The number of each row's chunk."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1


class IdLists(Column):
    """A column of lists as numpy views of the Arrow file's memory: ``lists[rows]`` copies nothing."""

    def __init__(self, column: pa.ChunkedArray):
        super().__init__(column)
        offsets = [chunk.offsets.to_numpy() for chunk in self.chunks]
        self.values = [chunk.values.to_numpy() for chunk in self.chunks]
        empty = np.zeros(0, dtype=np.int32)
        self.begins = np.concatenate([empty, *(chunk[:-1] for chunk in offsets)])
        self.lengths = np.concatenate([empty, *(np.diff(chunk) for chunk in offsets)])

    def __getitem__(self, rows: np.ndarray) -> list[np.ndarray]:
        begins = self.begins[rows]
        ends = begins + self.lengths[rows]
        places = zip(self.chunk_of(rows).tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [self.values[chunk][begin:end] for chunk, begin, end in places]


class Texts(Column):
    """A column of texts, ``texts[rows]``; of long columns, Arrow's own ``take`` copies more than is asked for."""

    def __getitem__(self, rows: np.ndarray) -> list[str]:
        chunks = self.chunk_of(rows)
        places = zip(chunks.tolist(), (rows - self.first_rows[chunks]).tolist(), strict=True)
        return [self.chunks[chunk][row].as_py() for chunk, row in places]
