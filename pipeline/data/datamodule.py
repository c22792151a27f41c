"""Stage 1's door to training: the batches of a prepared corpus, planned afresh for every epoch."""

import sys

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader

from pipeline.config import Configuration, require_positions
from pipeline.data.batching import BatchPlan, Planned, TokenBudgetSampler
from pipeline.data.encoded import EncodedPairs, ResegmentedPairs
from pipeline.data.preparation import Prepared
from pipeline.data.reading import num_reads
from pipeline.data.stages import name_of


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
        if regularisation := configuration.tokenizer.regularisation:
            self.train = ResegmentedPairs(
                prepared.train,
                batching.max_source_tokens,
                batching.max_target_tokens,
                prepared.tokenizers,
                regularisation,
                batching.tokens_per_batch,
            )
        corpora = configuration.corpora
        self.sizes = np.bincount(self.train.corpus, minlength=len(corpora.each)).tolist()
        """Training pairs of each corpus."""
        self.reads = num_reads(self.sizes, [corpus.weight for corpus in corpora.each], corpora.temperature)
        """How many of them an epoch reads."""
        self.valid = EncodedPairs(prepared.valid)
        longest = max(lengths.max(initial=0) for lengths in (self.valid.source_lengths, self.valid.target_lengths))
        require_positions(configuration.model, int(longest) + 1, "the longest sentence of corpora.valid")

    def setup(self, stage: str) -> None:
        if self.trainer.is_global_zero:
            plan = self._sampler().plan
            skipped = f", {self.num_skipped:,} pairs skipped as too long" if self.num_skipped else ""
            print(f"{len(plan):,} batches an epoch, {plan.padding_share:.1%} padding{skipped}", file=sys.stderr)
            if self.reads != self.sizes:
                reads = ", ".join(
                    f"{read:,} of {name_of(corpus)} ({size:,} pairs)"
                    for corpus, size, read in zip(self.configuration.corpora.each, self.sizes, self.reads, strict=True)
                )
                print(f"an epoch reads {reads}", file=sys.stderr)

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
        shares = [Planned(rows, float(tokens.sum())) for rows in batches[self.trainer.global_rank :: ranks]]
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
