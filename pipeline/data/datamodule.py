"""Stage 1's door to training: the batches of a prepared corpus, planned afresh for every epoch."""

import math
import sys

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from pipeline.config import Configuration, require_positions
from pipeline.data.batching import Batch, BatchPlan, TokenBudgetSampler, collate
from pipeline.data.preparation import Prepared


class TranslationData(LightningDataModule):
    """Training and validation batches for this process's share of the devices.

    The position in training is ``trainer.global_step`` and nothing else: as an epoch always has the same number of
    updates, it tells the epoch and the next batch. A resumed run therefore goes on at exactly that batch, at once.
    """

    def __init__(self, configuration: Configuration, prepared: Prepared):
        super().__init__()
        self.configuration = configuration
        self.prepared = prepared
        batching = configuration.batching
        self.train = EncodedPairs(prepared.train, batching.max_source_tokens, batching.max_target_tokens)
        self.num_skipped = len(prepared.train) - len(self.train)
        """Training pairs left out as longer than ``max_source_tokens`` or ``max_target_tokens``."""
        if not len(self.train):
            raise ValueError(
                f"none of {self.num_skipped} training pairs is within batching.max_source_tokens="
                f"{batching.max_source_tokens} and batching.max_target_tokens={batching.max_target_tokens}: raise them"
            )
        self.valid = EncodedPairs(prepared.valid)
        longest = max(lengths.max(initial=0) for lengths in (self.valid.source_lengths, self.valid.target_lengths))
        require_positions(configuration.model, int(longest) + 1, "the longest sentence of corpora.valid")

    def setup(self, stage: str) -> None:
        if self.trainer.is_global_zero:
            plan = self._sampler().plan
            skipped = f", {self.num_skipped:,} pairs skipped as too long" if self.num_skipped else ""
            print(f"{len(plan):,} batches an epoch, {plan.padding_share:.1%} padding{skipped}", file=sys.stderr)

    def train_dataloader(self) -> DataLoader:
        """This rank's batches from the next update on; its length is that of the whole epoch."""
        sampler = self._sampler()
        accumulate = self.configuration.trainer.accumulate_batches
        updates_per_epoch = -(-len(sampler) // accumulate)
        sampler.epoch, update = divmod(self.trainer.global_step, updates_per_epoch)
        sampler.start = update * accumulate
        return self._loader(self.train, sampler, self.configuration.batching.num_workers)

    def val_dataloader(self) -> DataLoader:
        """This rank's share of all validation pairs, each once; ``update_tokens`` is the number of all their tokens."""
        ranks = min(self.trainer.world_size, len(self.valid)) or 1
        if self.trainer.global_rank >= ranks:
            return self._loader(self.valid, [], 0)
        plan = BatchPlan(
            self.valid.source_lengths, self.valid.target_lengths, self.configuration.batching.tokens_per_batch, ranks
        )
        batches, tokens = plan.batches()
        shares = [(rows, float(tokens.sum())) for rows in batches[self.trainer.global_rank :: ranks]]
        return self._loader(self.valid, shares, 0)

    def _sampler(self) -> TokenBudgetSampler:
        return TokenBudgetSampler(
            self.train.source_lengths,
            self.train.target_lengths,
            self.configuration.batching.tokens_per_batch,
            self.configuration.seed,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            accumulate=self.configuration.trainer.accumulate_batches,
        )

    def _loader(self, pairs: "EncodedPairs", batches, num_workers: int) -> DataLoader:
        return DataLoader(
            pairs,
            sampler=batches,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # or else every iterator would draw from the global random numbers
        )


class EncodedPairs(torch.utils.data.Dataset):
    """The pairs whose sides are not too long. An item is a whole batch, ``pairs[rows, update_tokens]``; the ids stay in
    the memory-mapped file, which workers and ranks share."""

    def __init__(self, encoded: Dataset, max_source: float = math.inf, max_target: float = math.inf):
        self.arguments = (encoded, max_source, max_target)
        self.source, self.target = (IdLists(encoded.data.column(f"{side}_ids")) for side in ("source", "target"))
        self.rows = np.flatnonzero((self.source.lengths <= max_source) & (self.target.lengths <= max_target))
        self.source_lengths = self.source.lengths[self.rows]
        self.target_lengths = self.target.lengths[self.rows]

    def __reduce__(self):
        return EncodedPairs, self.arguments  # a worker maps the file instead of receiving the ids

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, batch: tuple[np.ndarray, float]) -> Batch:
        rows, update_tokens = batch
        rows = self.rows[rows]
        return collate(list(zip(self.source[rows], self.target[rows], strict=True)), update_tokens)


class IdLists:
    """A column of lists as numpy views of the Arrow file's memory: ``lists[rows]`` copies nothing."""

    def __init__(self, column: pa.ChunkedArray):
        offsets = [chunk.offsets.to_numpy() for chunk in column.chunks]
        self.values = [chunk.values.to_numpy() for chunk in column.chunks]
        self.first_rows = np.cumsum([0] + [len(chunk) for chunk in column.chunks])
        empty = np.zeros(0, dtype=np.int32)
        self.begins = np.concatenate([empty, *(chunk[:-1] for chunk in offsets)])
        self.lengths = np.concatenate([empty, *(np.diff(chunk) for chunk in offsets)])

    def __getitem__(self, rows: np.ndarray) -> list[np.ndarray]:
        chunks = np.searchsorted(self.first_rows, rows, side="right") - 1
        begins = self.begins[rows]
        places = zip(chunks.tolist(), begins.tolist(), (begins + self.lengths[rows]).tolist(), strict=True)
        return [self.values[chunk][begin:end] for chunk, begin, end in places]
