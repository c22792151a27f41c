"""A run from its first update, or from its newest checkpoint, to the model it ships."""

import logging
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only

from pipeline.checkpoint import (
    DamagedCheckpoint,
    average_states,
    checkpoint_path,
    checkpoints,
    model_state,
    read_checkpoint,
    remove_unfinished,
    step_of,
    written_whole,
)
from pipeline.cli import write_configuration
from pipeline.config import Configuration, TrainerConfig
from pipeline.data.datamodule import TranslationData
from pipeline.data.execution import available_cores
from pipeline.data.full_disk import full_disk_told
from pipeline.data.preparation import prepare
from pipeline.training.callbacks import AfterUpdate, WholeFiles, describe
from pipeline.training.display import Display
from pipeline.training.ending import FINISHED, better
from pipeline.training.module import TranslationModule
from pipeline.training.signals import requeue_slurm_job
from pipeline.training.validation import METRICS, Validator, memory_advice

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


def train(configuration: Configuration) -> None:
    """See ``fit``."""
    quieten_lightning()
    run = Path(configuration.output.run)
    display = Display(speaks=rank_zero_only.rank == 0)
    prepared = prepare(configuration)
    module = TranslationModule(configuration, prepared.tokenizers, prepared.fingerprint)
    after_update = AfterUpdate(module, Validator(prepared, module), display)
    data = TranslationData(configuration, prepared)
    trainer = build_trainer(configuration.trainer, after_update, new_data_every_epoch=data.stream is not None)
    newest, passport = newest_checkpoint(run, display)
    if newest:
        check_continuation(newest, passport, module, trainer)
    if rank_zero_only.rank == 0:
        with full_disk_told(run):
            begin_folder(run, configuration)
        display.say(
            f"{'going on with' if newest else 'training'} {run} {device_words(trainer)}"
            + (f", from update {step_of(newest):,}" if newest else "")
        )
    batching = configuration.batching
    advice = f"lower batching.tokens_per_batch={batching.tokens_per_batch}, raise trainer.accumulate_batches as much, "
    try:
        with full_disk_told(run):
            with memory_advice(advice + "and choose another output.run"):
                trainer.fit(module, datamodule=data, ckpt_path=newest)
            if ending := after_update.standing.ending(configuration.trainer):
                ship_the_better(trainer, after_update, ending)
    except BaseException as error:
        if launcher := trainer.strategy.launcher:
            launcher.kill(signal.SIGKILL)  # the other ranks may wait for this one in vain
        if isinstance(error, RuntimeError) and "closed by peer" in str(error):
            raise ValueError("another process of this training has ended; its error message tells why") from error
        raise
    finally:
        data.teardown("fit")
        after_update.close()
    if not ending:
        leave(after_update)


def quieten_lightning() -> None:
    """Lightning's hints concern programmers, and what users need to know we say ourselves."""
    for name in ("pytorch_lightning", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name)


def build_trainer(config: TrainerConfig, after_update: AfterUpdate, new_data_every_epoch: bool = False) -> Trainer:
    """Lightning's trainer; when it validates, logs, saves and ends is ``after_update``'s business."""
    on_gpu = torch.cuda.is_available() and config.accelerator != "cpu"
    if config.accelerator == "gpu" and not on_gpu:
        raise ValueError("trainer.accelerator=gpu, but torch sees no GPU: use auto or cpu")
    if config.precision == "16" and not on_gpu:
        raise ValueError("trainer.precision=16 needs a GPU: use bf16, 32 or auto")
    there = torch.cuda.device_count() if on_gpu else available_cores()
    devices = config.devices or (there if on_gpu else 1)
    if devices > there and on_gpu:
        raise ValueError(f"trainer.devices={devices}, but torch sees {there} GPUs: lower it")
    if devices > there and rank_zero_only.rank == 0:
        warnings.warn(f"trainer.devices={devices} processes take turns on {there} cores: lower it", stacklevel=2)
    precision = config.precision
    if precision == "auto":
        precision = "bf16" if multiplies_bf16(on_gpu) else "32"
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    return Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        devices=devices,
        num_nodes=config.num_nodes,
        strategy="ddp" if devices * config.num_nodes > 1 else "auto",
        precision=PRECISIONS[precision],
        max_epochs=-1,
        accumulate_grad_batches=config.accumulate_batches,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=int(new_data_every_epoch),
        callbacks=[after_update],
        plugins=[WholeFiles()],
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def multiplies_bf16(on_gpu: bool) -> bool:
    """Whether the device has instructions for it, which make it faster than 32 bits."""
    if on_gpu:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch before 2.11 does not tell
    return capabilities.get("avx512_bf16", False) or capabilities.get("amx_bf16", False)


def newest_checkpoint(run: Path, display: Display) -> tuple[Path | None, dict]:
    """The newest checkpoint that is not damaged, and what it says of itself."""
    for path in reversed(checkpoints(run)):
        if content := read_or_set_aside(path, display):
            return path, content["dragoman"]
    return None, {}


def read_or_set_aside(path: Path, display: Display) -> dict | None:
    """A checkpoint's content; one that is damaged is renamed, and training goes on without it."""
    try:
        return read_checkpoint(path)
    except (DamagedCheckpoint, FileNotFoundError) as error:
        display.say(f"{error}; going on without it")
        if rank_zero_only.rank == 0 and path.exists():
            path.rename(path.with_suffix(".damaged"))
        return None


def check_continuation(path: Path, begun: dict, module: TranslationModule, trainer: Trainer) -> None:
    """Raise ``ValueError`` unless training can go on from this checkpoint as if it had never stopped."""
    data, run = module.configuration.output.data, module.configuration.output.run
    if begun["tokenizers"] != module.passport["tokenizers"]:
        raise ValueError(f"{path} was trained with another tokenizer than the one in {data}: choose another output.run")
    if begun["data"] != module.passport["data"]:
        raise ValueError(f"the corpus in {data} has changed since {run} was begun: choose another output.run")
    batches = trainer.world_size * trainer.accumulate_grad_batches
    if begun["batches_per_update"] != batches:
        raise ValueError(
            f"{run} was begun with {begun['batches_per_update']} batches per update, but {trainer.world_size} devices "
            f"times trainer.accumulate_batches={trainer.accumulate_grad_batches} are {batches}: change one of them"
        )


def begin_folder(run: Path, configuration: Configuration) -> None:
    for folder in (run, run / "checkpoints", run / "logs", run / "samples"):
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
    (run / FINISHED).unlink(missing_ok=True)
    with written_whole(run / "config.yaml") as new:
        write_configuration(configuration, new)


def device_words(trainer: Trainer) -> str:
    precision = {PRECISIONS[name]: name for name in PRECISIONS}[trainer.precision]
    where = "the CPU" if trainer.strategy.root_device.type == "cpu" else torch.cuda.get_device_name()
    return f"on {where}" + (f" × {trainer.world_size}" if trainer.world_size > 1 else "") + f", precision {precision}"


def ship_the_better(trainer: Trainer, after_update: AfterUpdate, ending: str) -> None:
    """Ship the average of the last checkpoints, or the best single one, whichever validates better."""
    configuration, standing, run = after_update.configuration, after_update.standing, after_update.run
    module = after_update.module.to(trainer.strategy.root_device)
    last = []

    def states() -> Iterator[dict[str, torch.Tensor]]:
        for path in checkpoints(run)[-configuration.trainer.keep_last :]:
            if content := read_or_set_aside(path, after_update.display):
                last.append(path)
                yield model_state(content)

    module.model.load_state_dict(average_states(states()))
    scores, _ = after_update.validator.scores(trainer)
    average = shipped = {"steps": [step_of(path) for path in last], "validation": scores}
    single = {"steps": [standing.best_step], "validation": standing.best_scores}
    if not better(scores, standing.best_scores, METRICS[configuration.trainer.metric]) and (
        best := read_or_set_aside(checkpoint_path(run, standing.best_step), after_update.display)
    ):
        module.model.load_state_dict(model_state(best))
        shipped = single
    if trainer.is_global_zero:
        after_update.ship(shipped | {"single": single, "average": average})
        with written_whole(run / FINISHED) as new:
            standing.write(new)
    what = f"the average of {len(last)} checkpoints" if shipped is average else f"update {standing.best_step:,}"
    after_update.display.say(f"{ending}; {run / 'model'} holds {what}: {describe(shipped['validation'])}")


def leave(after_update: AfterUpdate) -> None:
    """End the program as the signal asked for, after its checkpoint is written."""
    received = after_update.signals.received
    after_update.display.say(
        f"stopped after update {after_update.standing.step:,}, which is saved; the same command goes on from there"
    )
    if rank_zero_only.rank:
        raise SystemExit(0)  # an error here would make Lightning end the others by force
    if received == signal.SIGUSR1:
        requeue_slurm_job()
    raise SystemExit(128 + (received or signal.SIGTERM))
