"""What happens after each update, in one order: stop?, log, validate, ship the best, save.

Everything counts optimiser updates, not batches, and a checkpoint is written only between updates, after all else that
its update brings: a run that goes on from it repeats nothing and leaves nothing out.
"""

import dataclasses
import math
import time
import warnings
from pathlib import Path

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from pytorch_lightning.plugins.io import TorchCheckpointIO

from pipeline.checkpoint import checkpoint_path, checkpoints, read_checkpoint, save_model, step_of, written_whole
from pipeline.training.display import Display
from pipeline.training.ending import Standing
from pipeline.training.module import TOTALS, TranslationModule
from pipeline.training.run_log import RunLog
from pipeline.training.signals import StopSignals
from pipeline.training.validation import METRICS, Validator

LEAST_SCALE = 1e-4
"""Where 16-bit floats scale the loss by less than this, every update is skipped: its gradient is infinite by itself."""


class AfterUpdate(Callback):
    """Logs, validates, saves and ends training, whose state it keeps in ``standing``."""

    def __init__(self, module: TranslationModule, validator: Validator, display: Display):
        self.configuration = module.configuration
        self.limits = module.configuration.trainer
        self.run = Path(module.configuration.output.run)
        self.module, self.validator, self.display = module, validator, display
        self.standing = Standing()
        self.signals = StopSignals(display.say)
        self.record: RunLog | None = None
        self.clock = self.start_clock = 0.0
        self.start_progress = 0.0
        self.row_seconds = self.row_waiting = 0.0
        """Training time, and the part of it spent waiting for data, since the last row of the log."""

    # Lightning's hooks

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.standing.ending(self.limits):
            trainer.should_stop = True  # only the last steps after training are left to do

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self.record = RunLog(self.run / "logs", trainer.global_step, self.validator.columns)
            self.warn_of_warmup(trainer)
        self.signals.install()
        self.start_progress = self.module.progress()
        self.start_clock = self.clock = time.monotonic()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch, batch_idx: int) -> None:
        self.row_waiting += self.pass_time()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs, batch, batch_idx: int) -> None:
        if trainer.global_step != self.standing.step:
            self.after_update(trainer, trainer.global_step)
        else:
            self.pass_time()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.close()

    def state_dict(self) -> dict:
        totals = dict(zip(TOTALS, self.totals(), strict=True))
        row = {"seconds": self.row_seconds, "waiting": self.row_waiting}
        return {"standing": dataclasses.asdict(self.standing), "totals": totals, "row": row}

    def load_state_dict(self, state: dict) -> None:
        self.standing = Standing(**state["standing"])
        self.module.seconds = self.standing.seconds
        # The sums over ranks come back in equal shares.
        self.module.totals = {name: total / self.module.trainer.world_size for name, total in state["totals"].items()}
        self.row_seconds, self.row_waiting = state["row"]["seconds"], state["row"]["waiting"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict) -> None:
        """Lightning's counts lose an epoch where a run is broken at an epoch's end, so they are written anew.

        Its position counts the batches of one device, which are others where the same updates are spread anew.
        """
        loops = checkpoint["loops"]["fit_loop"]
        batches, ended = loops["epoch_loop.batch_progress"], loops["epoch_loop.batch_progress"]["is_last_batch"]
        epochs = checkpoint["epoch"] + ended
        for counts in (batches["current"], batches["total"]):
            here = counts["ready"] * trainer.accumulate_grad_batches // checkpoint["dragoman"]["accumulate_batches"]
            counts.update(ready=here, started=here, processed=here, completed=here - (not ended))
        for counts in (loops["epoch_progress"]["current"], loops["epoch_progress"]["total"]):
            begun = epochs + (not ended)
            counts.update(ready=begun, started=begun, processed=epochs, completed=epochs)

    # what they do

    def after_update(self, trainer: Trainer, step: int) -> None:
        limits, standing = self.limits, self.standing
        standing.step = step
        epochs = trainer.datamodule.passes((trainer.fit_loop.batch_idx + 1) / trainer.num_training_batches)
        standing.epochs = int(epochs)
        self.pass_time()
        if limits.max_minutes:  # all ranks go by rank 0's clock, or their learning rates and their end would differ
            standing.seconds = trainer.strategy.broadcast(standing.seconds)
        self.module.seconds = standing.seconds
        stopping = trainer.strategy.reduce_boolean_decision(self.signals.received is not None, all=False)
        ending = bool(standing.ending(limits))

        validating = step % limits.validate_every == 0 or ending
        saving = step % limits.checkpoint_every == 0 or ending or stopping
        row = {}
        if step % limits.log_every == 0 or ending:
            row |= self.training_columns()
            self.display.show({"step": step} | row, *self.outlook())
        elif validating or saving:
            self.totals()  # waits for the device, so that training time is told from what follows, and finds NaN
            self.pass_time()
        if validating:
            scores, best = self.validate(trainer, step)
            row |= scores
            saving |= best
            ending |= bool(standing.ending(limits))
        if row and self.record:
            self.record.add({"step": step, "epoch": epochs, "minutes": standing.seconds / 60} | row)
            if validating:
                self.record.draw()
        if saving or ending:
            self.save(trainer, step)
        if stopping or ending:
            trainer.should_stop = True
        self.clock = time.monotonic()

    def pass_time(self) -> float:
        """Count the time since the last call as training time."""
        now = time.monotonic()
        passed, self.clock = now - self.clock, now
        self.standing.seconds += passed
        self.row_seconds += passed
        return passed

    def totals(self) -> list[float]:
        """The module's sums since the last row, over all ranks, in the order of ``TOTALS``.

        Raises:
            ValueError: the loss or the gradient is no longer a number.
        """
        module = self.module
        sums = [torch.as_tensor(module.totals[name], dtype=torch.float64, device=module.device) for name in TOTALS]
        totals = module.trainer.strategy.reduce(torch.stack(sums), reduce_op="sum").tolist()
        scaler = getattr(module.trainer.precision_plugin, "scaler", None)
        if not all(map(math.isfinite, totals)) or (scaler and scaler.get_scale() < LEAST_SCALE):
            raise ValueError(
                f"loss or gradient is not finite any more before update {self.standing.step}: lower "
                f"optimizer.learning_rate={self.configuration.optimizer.learning_rate:g} or raise "
                f"optimizer.warmup_steps={self.configuration.optimizer.warmup_steps}, with another output.run"
            )
        return totals

    def training_columns(self) -> dict[str, float]:
        """What the log tells of the training since its last such row."""
        sums = dict(zip(TOTALS, self.totals(), strict=True))
        self.pass_time()
        seconds = max(self.row_seconds, 1e-9)
        row = {
            "loss": sums["loss"] / sums["target_tokens"],
            "learning_rate": self.module.learning_rate,
            "source_tokens_per_second": sums["source_tokens"] / seconds,
            "target_tokens_per_second": sums["target_tokens"] / seconds,
            "waiting": self.row_waiting / seconds,
            "padding": 1 - (sums["source_tokens"] + sums["target_tokens"]) / sums["cells"],
        }
        if sums["updates"]:
            row["gradient_norm"] = sums["gradient_norm"] / sums["updates"]
        self.module.totals = dict.fromkeys(TOTALS, 0.0)
        self.row_seconds = self.row_waiting = 0.0
        return row

    def warn_of_warmup(self, trainer: Trainer) -> None:
        """Where training ends before the learning rate has reached its peak."""
        warmup, data = self.configuration.optimizer.warmup_steps, trainer.datamodule
        updates = {"max_steps": self.limits.max_steps}
        if not data.stream:  # whose passes have as many updates as there happen to be
            updates["max_epochs"] = self.limits.max_epochs * data.updates
        for limit, number in updates.items():
            if 0 < number < warmup:
                warnings.warn(
                    f"optimizer.warmup_steps={warmup} is more than the {number} updates that "
                    f"trainer.{limit}={getattr(self.limits, limit)} allows: the learning rate gets to "
                    f"{number / warmup:.1%} of its peak at most: lower optimizer.warmup_steps",
                    stacklevel=2,
                )

    def outlook(self) -> tuple[float, float]:
        """The share of the training that is done, and the seconds that the rest takes at this run's pace."""
        progress = self.module.progress()
        pace = (time.monotonic() - self.start_clock) / max(progress - self.start_progress, 1e-9)
        return progress, (1 - progress) * pace

    def validate(self, trainer: Trainer, step: int) -> tuple[dict[str, float], bool]:
        """Scores, and whether they are the best so far, which are shipped at once."""
        scores, translations = self.validator.scores(trainer)
        best = self.standing.take(step, scores, METRICS[self.limits.metric])
        self.display.say(
            f"update {step:,}: {describe(scores)}" + (f", the best {self.limits.metric} so far" if best else "")
        )
        if trainer.is_global_zero:
            if translations:
                path = self.run / "samples" / f"step-{step:07d}.txt"
                self.display.say(self.validator.write_samples(path, translations))
            if self.limits.attention_pictures:
                self.draw_attention(trainer, step, translations[0])
            if best:
                self.ship({"steps": [step], "validation": scores})
        return scores, best

    def draw_attention(self, trainer: Trainer, step: int, translation: str) -> None:
        from matplotlib.image import imread

        name = f"attention-step-{step:07d}"
        try:
            path = self.validator.draw_attention(trainer, name, self.run / "samples", translation)
        except ValueError as error:  # a translation without end is no reason to end training
            self.display.say(f"no picture of attention: {error}")
        else:
            self.record.tensorboard.add_image("cross-attention", imread(path)[..., :3], step, dataformats="HWC")

    def ship(self, metrics: dict) -> None:
        """Write the model as it is now to the run's model folder."""
        save_model(self.run / "model", self.module.model, self.validator.tokenizers, self.configuration, metrics)

    def save(self, trainer: Trainer, step: int) -> None:
        trainer.save_checkpoint(checkpoint_path(self.run, step))
        if trainer.is_global_zero:
            for path in checkpoints(self.run)[: -self.limits.keep_last]:
                if step_of(path) != self.standing.best_step:
                    path.unlink()

    def close(self) -> None:
        self.signals.restore()
        self.display.close()
        if self.record:
            self.record.tensorboard.close()


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that are on disk whole or not at all, and are read without running code."""

    def save_checkpoint(self, checkpoint: dict, path, storage_options=None) -> None:
        try:
            with written_whole(Path(path)) as new, open(new, "wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            # What torch raises when it closes the file hides why it could not be written.
            reason = error.__context__ if isinstance(error.__context__, OSError) else error
            intact = "; the checkpoint before it is intact" if any(Path(path).parent.glob("step-*.ckpt")) else ""
            raise OSError(f"{path} could not be written ({reason}){intact}") from error

    def load_checkpoint(self, path, map_location=None, weights_only=True) -> dict:
        return read_checkpoint(path)


def describe(scores: dict[str, float]) -> str:
    """Scores of a validation in words."""
    text = f"validation loss {scores['valid_loss']:.4f}, perplexity {scores['valid_perplexity']:.2f}"
    if "bleu" in scores:
        text += f", BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f}"
    each = [f"{name.removeprefix('bleu_')} {scores[name]:.2f}" for name in scores if name.startswith("bleu_")]
    return text + (f" (BLEU {', '.join(each)})" if each else "")
