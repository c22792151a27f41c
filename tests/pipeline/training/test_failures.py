"""What goes wrong in training is told in time, and costs no checkpoint."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback

from pipeline.checkpoint import checkpoints, load_model, read_checkpoint, step_of
from pipeline.config import TrainerConfig
from pipeline.inference.held_out import evaluate_models
from pipeline.inference.translator import Translator
from pipeline.training.callbacks import WholeFiles
from pipeline.training.fit import fit
from pipeline.training.training import build_trainer
from tests.pipeline.training.conftest import assert_same_training, newest, stop_at


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tiny, capsys):
    whole, broken = tiny("whole"), tiny("broken")
    fit(whole)
    fit(tiny("broken", max_steps=10))
    last = checkpoints(broken.output.run)[-1]
    last.write_bytes(last.read_bytes()[:1000])
    capsys.readouterr()
    fit(broken)
    said = capsys.readouterr().err
    assert f"{last.name}: the checkpoint is damaged" in said and "from update 8" in said
    assert_same_training(broken, whole)


def test_a_damaged_checkpoint_is_left_out_of_the_average(tiny, capsys):
    run = fit(tiny(max_steps=8))
    *_, damaged, newest = checkpoints(run)
    damaged.write_bytes(damaged.read_bytes()[:1000])
    fit(tiny(max_steps=9))
    assert f"{damaged.name}: the checkpoint is damaged" in capsys.readouterr().err
    assert load_model(run).metrics["average"]["steps"] == [step_of(newest), 9]


def test_too_little_memory_is_explained_and_the_last_checkpoint_is_intact(tiny, monkeypatch):
    configuration = tiny()

    def run_out():
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        stop_at(6, patch, run_out)
        with pytest.raises(ValueError, match=r"too little memory: lower batching\.tokens_per_batch=100"):
            fit(configuration)
    assert newest(configuration)["global_step"] == 5
    fit(configuration)
    assert newest(configuration)["global_step"] == 12


def test_a_full_disk_leaves_the_checkpoint_before(tiny, monkeypatch):
    configuration = tiny()
    save = torch.save

    def full(content, file):
        if content["global_step"] == 8:
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        save(content, file)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        told = (
            r"step-0000008\.ckpt could not be written .*No space left.*: make room on the disk of .*run, and the same"
        )
        with pytest.raises(OSError, match=told):
            fit(configuration)
    left = {path.name for path in Path(configuration.output.run, "checkpoints").iterdir()}
    assert left == {"step-0000004.ckpt", "step-0000005.ckpt"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no file that is always full")
def test_a_checkpoint_that_finds_the_disk_full_says_so_and_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.training.callbacks.written_whole", lambda path: nullcontext(Path("/dev/full")))
    for left in ("", "; the checkpoint before it is intact"):
        with pytest.raises(OSError, match=rf"0008\.ckpt could not be written \(.*No space left on device\){left}$"):
            WholeFiles().save_checkpoint({"weights": torch.zeros(100_000)}, tmp_path / "step-0000008.ckpt")
        (tmp_path / "step-0000004.ckpt").touch()


def test_a_warmup_that_is_longer_than_the_training_is_told(tiny):
    with pytest.warns(UserWarning) as told:
        fit(tiny(max_steps=2, max_epochs=1, optimizer=dict(warmup_steps=40), validation_sentences=0, metric="loss"))
    texts = [str(warning.message) for warning in told if "warmup" in str(warning.message)]
    assert texts[0] == (
        "optimizer.warmup_steps=40 is more than the 2 updates that trainer.max_steps=2 allows: the learning rate gets "
        "to 5.0% of its peak at most: lower optimizer.warmup_steps"
    )
    assert len(texts) == 2 and "updates that trainer.max_epochs=1 allows" in texts[1]


def test_more_devices_than_there_are_are_told(monkeypatch):
    monkeypatch.setattr("pipeline.training.training.available_cores", lambda: 2)
    with pytest.warns(UserWarning, match="trainer.devices=9 processes take turns on 2 cores: lower it"):
        build_trainer(TrainerConfig(devices=9, accelerator="cpu", precision="32"), Callback())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="trainer.devices=9, but torch sees 1 GPUs: lower it"):
        build_trainer(TrainerConfig(devices=9, precision="32"), Callback())


def test_a_loss_that_is_no_number_ends_the_run_before_it_is_saved(tiny):
    configuration = tiny(optimizer=dict(learning_rate=1e30, warmup_steps=1), validate_every=100)
    with pytest.raises(ValueError, match=r"not finite any more .*lower optimizer\.learning_rate=1e\+30"):
        fit(configuration)
    for path in checkpoints(configuration.output.run):
        assert all(tensor.isfinite().all() for tensor in read_checkpoint(path)["state_dict"].values())


def test_words_that_cannot_be_counted_are_known_before_the_work(tiny, seen, monkeypatch):
    run = fit(tiny("other"))
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    monkeypatch.setattr(Translator, "translate", None)
    seen.clear()
    for work in (
        lambda: fit(tiny(corpora=dict(target_language="ja-x-fit"))),
        lambda: evaluate_models([str(run)], target_language="ja-x-evaluate"),
    ):
        with pytest.raises(ValueError, match=r"which is not installed: pip install 'sacrebleu\[ja\]'"):
            work()
    assert seen == []


def test_a_metric_needs_sentences(tiny):
    with pytest.raises(ValueError, match=r"validation_sentences=0 leaves trainer\.metric=bleu without a value"):
        fit(tiny(validation_sentences=0))
