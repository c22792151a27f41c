"""Stage 1's door to training: the batches of a prepared corpus, or a stream's windows, planned afresh every epoch."""

import sys
import time
from typing import NamedTuple

import datasets
import numpy as np
import torch
from datasets import Dataset
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from pipeline.config import Configuration, require_positions
from pipeline.data.batching import BatchPlan, Planned, TokenBudgetSampler
from pipeline.data.encoded import EncodedPairs, ResegmentedPairs
from pipeline.data.preparation import Prepared
from pipeline.data.reading import num_reads
from pipeline.data.stages import name_of
from pipeline.data.streaming import Place, Stream, Window


class Position(NamedTuple):
    """Where a window of a stream begins."""

    window: int
    """Its number."""

    update: int
    """Updates before it."""

    places: list[Place]
    """Where each corpus is read."""


class TranslationData(LightningDataModule):
    """Training and validation batches for this process's share of the devices.

    The position in training is ``trainer.global_step`` and nothing else: as an epoch always has the same number of
    updates, it tells the epoch and the next batch. A resumed run therefore goes on at exactly that batch, at once.

    Of a stream, what Lightning calls an epoch is a window. As their updates are as many as there happen to be, a
    checkpoint also tells with which update its window began, and where in the corpora.
    """

    def __init__(self, configuration: Configuration, prepared: Prepared):
        super().__init__()
        self.configuration = configuration
        self.prepared = prepared
        corpora = configuration.corpora
        self.train = self._pairs(prepared.train)
        """What is trained on; before a stream's first window is open, its like."""
        self.sizes = np.bincount(self.train.corpus, minlength=len(corpora.each)).tolist()
        """Training pairs of each corpus."""
        self.reads = self.sizes
        """How many of them an epoch reads."""
        if not corpora.stream_window:
            self.reads = num_reads(self.sizes, [corpus.weight for corpus in corpora.each], corpora.temperature)
        self.valid = EncodedPairs(prepared.valid)
        longest = max(lengths.max(initial=0) for lengths in (self.valid.source_lengths, self.valid.target_lengths))
        require_positions(configuration.model, int(longest) + 1, "the longest sentence of corpora.valid")

        self.stream = Stream(configuration) if corpora.stream_window else None
        self.window: Window | None = None
        self.begin = Position(0, 0, [Place()] * len(corpora.each))
        self.updates = 0
        """Those of the epoch."""

    def setup(self, stage: str) -> None:
        sampler = self._sampler()
        if self.stream:
            self.stream.start(sampler.batches_per_update, self.trainer.node_rank, self.trainer.local_rank == 0)
        if self.trainer.is_global_zero:
            print(self._described(sampler.plan), file=sys.stderr)

    def teardown(self, stage: str) -> None:
        """Also to be called where training ends by an error."""
        if self.stream:
            self.stream.close()

    def train_dataloader(self) -> DataLoader:
        """This rank's batches from the next update on; its length is that of the whole epoch."""
        if self.stream:
            self._open_window()
        sampler = self._sampler()
        accumulate = self.configuration.trainer.accumulate_batches
        self.updates = -(-len(sampler) // accumulate)
        epochs, update = divmod(self.trainer.global_step - self.begin.update, self.updates)
        sampler.epoch = self.begin.window + epochs
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
        shares = [Planned(rows, float(tokens.sum())) for rows in batches[self.trainer.global_rank :: ranks]]
        return self._loader(self.valid, shares, 0)

    def passes(self, share: float) -> float:
        """Passes over the data, when so much of the epoch is done; of a stream, whose end is not known, whole ones."""
        if not self.stream:
            return self.trainer.current_epoch + share
        return float(min(place.passes for place in (self.window.end if share == 1 else self.begin.places)))

    def state_dict(self) -> dict:
        if not self.stream:
            return {}
        window, update, places = self._next_begin()
        return {"window": window, "update": update, "places": [list(place) for place in places]}

    def load_state_dict(self, state: dict) -> None:
        self.begin = Position(state["window"], state["update"], [Place(*place) for place in state["places"]])

    def _next_begin(self) -> Position:
        """Where the window begins that the next update is of."""
        step = self.trainer.global_step
        if self.window and step == self.begin.update + self.updates:
            return Position(self.begin.window + 1, step, self.window.end)
        return self.begin

    def _open_window(self) -> None:
        self.begin = self._next_begin()
        started = time.monotonic()
        self.window = self.stream.open(self.begin.window, self.begin.places)
        waited = time.monotonic() - started
        shards = [Dataset.from_file(str(path)) for path in self.window.shards]
        self.train = self._pairs(datasets.concatenate_datasets(shards))
        self.reads = np.bincount(self.train.corpus).tolist()  # their shares are in the window
        if self.trainer.is_global_zero:
            read, seconds = self.window.read, self.window.seconds
            print(
                f"window {self.begin.window:,}: {len(self.train):,} of {read:,} pairs, made in {seconds:,.1f} s "
                f"({read / seconds:,.0f} pairs/s), {waited:,.1f} s of them waited for",
                file=sys.stderr,
            )

    def _pairs(self, encoded: Dataset) -> EncodedPairs:
        """Those within the limits, or all anew cut in other pieces."""
        batching, regularisation = self.configuration.batching, self.configuration.tokenizer.regularisation
        limits = batching.max_source_tokens, batching.max_target_tokens
        pairs = EncodedPairs(encoded, *limits)
        self.num_skipped = len(encoded) - len(pairs)
        """Training pairs left out as longer than ``max_source_tokens`` or ``max_target_tokens``."""
        if not len(pairs):
            raise ValueError(
                f"none of {self.num_skipped} training pairs is within batching.max_source_tokens={limits[0]} and "
                f"batching.max_target_tokens={limits[1]}: raise them"
            )
        if regularisation:
            tokenizers = self.prepared.tokenizers
            return ResegmentedPairs(encoded, *limits, tokenizers, regularisation, batching.tokens_per_batch)
        return pairs

    def _described(self, plan: BatchPlan) -> str:
        """What there is to train on, in words."""
        corpora = self.configuration.corpora
        skipped = f", {self.num_skipped:,} pairs skipped as too long" if self.num_skipped else ""
        text = f"{len(plan):,} batches an epoch, {plan.padding_share:.1%} padding{skipped}"
        if self.stream:
            return f"a stream of windows of {corpora.stream_window:,} pairs, one like the first has {text}"
        if self.reads != self.sizes:
            reads = ", ".join(
                f"{read:,} of {name_of(corpus)} ({size:,} pairs)"
                for corpus, size, read in zip(corpora.each, self.sizes, self.reads, strict=True)
            )
            text += f"\nan epoch reads {reads}"
        return text

    def _sampler(self) -> TokenBudgetSampler:
        return TokenBudgetSampler(
            self.train.source_lengths,
            self.train.target_lengths,
            self.configuration.batching.tokens_per_batch,
            self.configuration.seed,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            accumulate=self.configuration.trainer.accumulate_batches,
            corpus=self.train.corpus,
            reads=self.reads,
        )

    def _loader(self, pairs: EncodedPairs, batches, num_workers: int) -> DataLoader:
        return DataLoader(
            pairs,
            sampler=batches,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # or else every iterator would draw from the global random numbers
        )
