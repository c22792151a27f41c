"""The translation model as Lightning trains it: loss per token, learning rate, dropout that depends on position."""

import hashlib
import math

import torch
from pytorch_lightning import LightningModule
from torch import Tensor

from models.loss import projected_cross_entropy
from pipeline.checkpoint import FORMAT, build_model, fingerprint, portable_files
from pipeline.config import Configuration
from pipeline.data.batching import Batch
from pipeline.data.tokenizer import PAD_ID, Tokenizers
from pipeline.training.optimizer import SCHEDULES, build_optimizer

TOTALS = ("loss", "target_tokens", "source_tokens", "cells", "gradient_norm", "updates")
"""What ``TranslationModule.totals`` sums: smoothed loss in nats, real tokens, tokens with padding, norm, updates."""


class TranslationModule(LightningModule):
    """Label-smoothed cross-entropy per target token of a whole update.

    The loss of a batch is the sum over its tokens, divided by the tokens of all batches of the update, on all ranks:
    whether they come as one batch, one after the other or on several devices, the gradient is the same. What
    Lightning (the mean over accumulated batches) and DDP (the mean over ranks) divide by is multiplied in first.
    """

    def __init__(self, configuration: Configuration, tokenizers: Tokenizers, data_fingerprint: str = ""):
        super().__init__()
        self.configuration = configuration
        self.passport = {
            "format": FORMAT,
            "files": portable_files(tokenizers, configuration),
            "tokenizers": fingerprint(tokenizers),
            "data": data_fingerprint,
        }
        """What a checkpoint says of itself."""
        torch.manual_seed(configuration.seed)
        self.model = build_model(configuration, tokenizers)
        self.encode, self.decode = self.model.encode, self.model.decode
        if configuration.trainer.compile:
            self.encode, self.decode = (torch.compile(f, dynamic=True) for f in (self.encode, self.decode))
        self.schedule = SCHEDULES[configuration.optimizer.schedule](
            configuration.optimizer, configuration.model.d_model
        )
        self.learning_rate = 0.0
        self.seconds = 0.0
        """Training time behind, over all restarts; kept by ``AfterUpdate``."""
        self.totals: dict[str, Tensor | float] = dict.fromkeys(TOTALS, 0.0)

    def loss_sums(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The label-smoothed and the plain negative log-likelihood of all target tokens, summed, in nats."""
        hidden = self.decode(batch.target_in, self.encode(batch.source))
        smoothing = self.configuration.trainer.label_smoothing
        return projected_cross_entropy(hidden, self.model.output_weight, batch.target_out, smoothing, PAD_ID)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout is a function of the position, so a resumed run draws what the unbroken one draws.
        position = (self.configuration.seed, self.current_epoch, batch_idx, self.global_rank)
        digest = hashlib.blake2b(repr(position).encode(), digest_size=8).digest()
        torch.manual_seed(int.from_bytes(digest, "little"))

    def training_step(self, batch: Batch) -> Tensor:
        loss, _ = self.loss_sums(batch)
        self.totals["loss"] += loss.detach().double()
        self.totals["target_tokens"] += (batch.target_out != PAD_ID).sum()
        self.totals["source_tokens"] += (batch.source != PAD_ID).sum()
        self.totals["cells"] += batch.target_out.numel() + batch.source.numel()
        return loss * (self.batches_per_update / batch.update_tokens)

    def validation_sums(self, batch: Batch) -> Tensor:
        """[3]: smoothed loss, plain loss and number of the batch's tokens, to be summed over batches and ranks."""
        smoothed, plain = self.loss_sums(batch)
        return torch.stack([smoothed, plain, (batch.target_out != PAD_ID).sum()]).double()

    @property
    def batches_per_update(self) -> int:
        """On all devices together."""
        return self.trainer.world_size * self.trainer.accumulate_grad_batches

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["dragoman"] = self.passport | {
            "batches_per_update": self.batches_per_update,
            "accumulate_batches": self.trainer.accumulate_grad_batches,
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        # A fused optimizer divides by the loss scale of 16-bit floats itself, and so after clipping: too late.
        fused = self.configuration.trainer.precision != "16"
        return build_optimizer(self.model, self.configuration.optimizer, fused)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.learning_rate = self.schedule(self.global_step + 1, self.progress())
        for group in optimizer.param_groups:
            group["lr"] = self.learning_rate

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        # Lightning's own clipping refuses fused optimizers, and keeps the norm to itself.
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.configuration.optimizer.clip_norm or math.inf)
        if self.global_rank == 0:  # the same on all
            # A gradient that overflows 16 bits is no update for Adam, whose own count leaves it out too. It is one for
            # ``global_step``: its batches are behind, and where training stands in the data is told by that alone.
            counts = norm.isfinite() | (self.configuration.trainer.precision != "16")
            self.totals["gradient_norm"] += norm.double().where(counts, 0.0)
            self.totals["updates"] += counts

    def progress(self) -> float:
        """The share of the training that lies behind, by the nearest of its limits, in [0, 1]."""
        limits, loop = self.configuration.trainer, self.trainer.fit_loop
        shares = [0.0]
        if limits.max_steps:
            shares.append(self.global_step / limits.max_steps)
        if limits.max_epochs:
            accumulate = self.trainer.accumulate_grad_batches
            share = loop.batch_idx // accumulate * accumulate / self.trainer.num_training_batches
            shares.append(self.trainer.datamodule.passes(share) / limits.max_epochs)
        if limits.max_minutes:
            shares.append(self.seconds / 60 / limits.max_minutes)
        return min(1.0, max(shares))
