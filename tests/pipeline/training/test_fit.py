import csv
import os
import runpy
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from pytorch_lightning import Callback
from torch.nn.functional import cross_entropy

from pipeline.checkpoint import average_states, checkpoints, load_model, model_state, read_checkpoint, step_of
from pipeline.config import TrainerConfig
from pipeline.data.batching import collate
from pipeline.data.tokenizer import PAD_ID
from pipeline.inference.engine import TorchEngine
from pipeline.inference.evaluation import score
from pipeline.inference.held_out import evaluate_models
from pipeline.inference.translator import Translator
from pipeline.training.callbacks import WholeFiles
from pipeline.training.fit import fit
from pipeline.training.module import TranslationModule
from pipeline.training.optimizer import SCHEDULES
from pipeline.training.signals import StopSignals
from pipeline.training.training import build_trainer
from tests.pipeline.training.conftest import PAIRS

ROOT = Path(__file__).parents[3]


def newest(configuration) -> dict:
    return read_checkpoint(checkpoints(configuration.output.run)[-1])


def assert_same_training(found, expected):
    """Weights and the optimizer's moments, bit for bit."""
    found, expected = newest(found), newest(expected)
    assert found["global_step"] == expected["global_step"]
    torch.testing.assert_close(found["state_dict"], expected["state_dict"], rtol=0, atol=0)
    torch.testing.assert_close(found["optimizer_states"], expected["optimizer_states"], rtol=0, atol=0)


@pytest.fixture
def seen(monkeypatch):
    """The sources of every batch that is trained on, with the epoch."""
    batches = []
    step = TranslationModule.training_step

    def recording_step(self, batch):
        batches.append((self.current_epoch, [tuple(row[row != PAD_ID].tolist()) for row in batch.source]))
        return step(self, batch)

    monkeypatch.setattr(TranslationModule, "training_step", recording_step)
    return batches


def stop_at(step, monkeypatch, action):
    """Call ``action`` in the forward pass of that update."""
    original = TranslationModule.training_step

    def training_step(self, batch):
        if self.global_step + 1 == step:
            action()
        return original(self, batch)

    monkeypatch.setattr(TranslationModule, "training_step", training_step)


# What a run leaves


def test_a_run_leaves_what_the_plan_promises(tiny, rows, capsys, curves):
    configuration = tiny()
    run = fit(configuration)
    assert {path.name for path in run.iterdir()} == {
        *("checkpoints", "config.yaml", "curves.png", "finished.json", "logs", "model", "samples")
    }
    assert (run / "logs" / "metrics.csv").exists()
    assert [path.name for path in (run / "samples").iterdir()].count("step-0000010.txt") == 1
    assert not [path for path in run.rglob("*") if "unfinished" in path.name]
    loaded = load_model(run)
    best = max((row for row in rows(configuration) if "bleu" in row), key=lambda r: (r["bleu"], -r["valid_loss"]))
    assert loaded.metrics["single"]["steps"] == [best["step"]]
    assert best["step"] in {step_of(path) for path in checkpoints(run)}

    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    capsys.readouterr()
    fit(configuration)
    assert "is finished: trainer.max_steps=12 reached" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_learning_rates_are_those_of_the_schedule_however_batches_are_accumulated(tiny, rows):
    for accumulate in (1, 3):
        configuration = tiny(f"run{accumulate}", accumulate_batches=accumulate, log_every=1)
        fit(configuration)
        rate = SCHEDULES["inverse_sqrt"](configuration.optimizer, configuration.model.d_model)
        found = {row["step"]: row["learning_rate"] for row in rows(configuration)}
        assert found == pytest.approx({step: rate(step, 0.0) for step in range(1, 13)}, rel=1e-6)


@pytest.mark.parametrize("every, steps", [(5, [5, 10, 12]), (1, list(range(1, 13))), (50, [12])])
def test_validations_count_updates_across_epochs_and_the_last_is_at_the_end(tiny, rows, every, steps):
    configuration = tiny(validate_every=every, accumulate_batches=2, validation_sentences=0, metric="loss")
    fit(configuration)
    assert [row["step"] for row in rows(configuration) if "valid_loss" in row] == steps
    assert rows(configuration)[-1]["epoch"] > 2


def test_validating_changes_nothing_of_the_training(tiny):
    often, never = tiny("often", validate_every=1), tiny("never", validate_every=100)
    fit(often), fit(never)
    assert_same_training(often, never)


def test_the_newest_checkpoints_and_the_best_are_kept(tiny, rows, monkeypatch):
    """With a learning rate that spoils what was learnt, the best is not among the newest."""
    monkeypatch.setitem(SCHEDULES, "linear", lambda config, d_model: lambda step, progress: 1e-3 if step < 6 else 1.0)
    configuration = tiny(
        optimizer=dict(schedule="linear"),
        **dict(checkpoint_every=1, validate_every=1, keep_last=2, metric="loss", validation_sentences=0),
    )
    run = fit(configuration)
    losses = {row["step"]: row["valid_loss"] for row in rows(configuration)}
    best = min(losses, key=losses.get)
    assert best < 11
    assert [step_of(path) for path in checkpoints(run)] == [best, 11, 12]
    model, _, _, metrics = load_model(run)
    assert metrics["steps"] == [best]
    assert metrics["single"]["validation"]["valid_loss"] == pytest.approx(losses[best], rel=1e-6)
    torch.testing.assert_close(model.state_dict(), model_state(read_checkpoint(checkpoints(run)[0])), rtol=0, atol=0)


def test_the_average_of_the_last_checkpoints_is_shipped_where_it_is_better(tiny, monkeypatch):
    """A rate that makes the weights jump about leaves their mean the better place."""
    monkeypatch.setitem(SCHEDULES, "linear", lambda config, d_model: lambda step, progress: 2e-2 if step < 20 else 0.1)
    configuration = tiny(
        optimizer=dict(schedule="linear"),
        **dict(checkpoint_every=1, validate_every=24, max_steps=24, metric="loss", validation_sentences=0),
    )
    run = fit(configuration)
    model, _, _, metrics = load_model(run)
    assert metrics["average"]["validation"]["valid_loss"] < metrics["single"]["validation"]["valid_loss"]
    assert metrics["steps"] == metrics["average"]["steps"] == [22, 23, 24]
    average = average_states(model_state(read_checkpoint(path)) for path in checkpoints(run))
    torch.testing.assert_close(model.state_dict(), average, rtol=0, atol=0)


# Going on


def test_a_run_that_goes_on_is_the_unbroken_run(tiny, seen):
    """Stopped inside an epoch, at its end and at the end of the next; whether or not other processes load the data."""
    whole = tiny("whole")
    fit(whole)
    unbroken = list(seen)
    seen.clear()
    for stop, num_workers in ((3, 0), (5, 2), (10, 0), (12, 0)):
        broken = tiny("broken", max_steps=stop, batching=dict(tokens_per_batch=100, num_workers=num_workers))
        fit(broken)
    assert seen == unbroken
    assert_same_training(broken, whole)


def test_every_epoch_sees_every_pair_once(tiny, seen):
    fit(tiny("broken", max_steps=0, max_epochs=1))
    fit(tiny("broken", max_steps=0, max_epochs=2))
    for epoch in (0, 1):
        rows = [row for e, batch in seen if e == epoch for row in batch]
        assert len(rows) == len(set(rows)) == len(PAIRS)


def test_a_log_row_spans_a_break(tiny, rows):
    """Stopped between two rows of the log, the next row still is the mean since the last."""
    whole, broken = tiny("whole", log_every=4), tiny("broken", log_every=4)
    fit(whole)
    with pytest.MonkeyPatch.context() as patch:
        stop_at(6, patch, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(SystemExit):
            fit(broken)
    fit(broken)
    assert rows(broken) == rows(whole)


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_update_be_finished_and_saved(tiny, monkeypatch, capsys, number, status):
    configuration = tiny()
    stop_at(6, monkeypatch, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as ended:
        fit(configuration)
    assert ended.value.code == status
    assert newest(configuration)["global_step"] == 6
    assert "stopped after update 6, which is saved; the same command goes on" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_time_counts_over_restarts(tiny):
    configuration = tiny(max_steps=0, max_minutes=0.02, validate_every=1000)
    fit(configuration)
    before = newest(configuration)
    longer = tiny(max_steps=0, max_minutes=0.03, validate_every=1000)
    fit(longer)
    standing = newest(longer)["callbacks"]["AfterUpdate"]["standing"]
    assert 1.2 <= before["callbacks"]["AfterUpdate"]["standing"]["seconds"] < 1.8 <= standing["seconds"] < 3


def test_training_stops_when_nothing_gets_better(tiny, capsys, monkeypatch):
    monkeypatch.setitem(SCHEDULES, "linear", lambda config, d_model: lambda step, progress: 1e-3 if step < 3 else 1.0)
    patient = dict(max_steps=100, validate_every=1, patience=3, metric="loss", validation_sentences=0)
    configuration = tiny(optimizer=dict(schedule="linear"), **patient)
    fit(configuration)
    assert newest(configuration)["global_step"] == 5
    assert "no better loss in trainer.patience=3 validations" in capsys.readouterr().err


def test_a_run_may_be_spread_over_devices_and_accumulation_anew(tiny, capsys):
    """The same batches make an update, or else the run is another one."""
    fit(tiny(max_steps=6))
    with pytest.raises(ValueError, match=r"begun with 1 batches per update.*accumulate_batches=2 are 2"):
        fit(tiny(accumulate_batches=2))


def test_other_options_are_refused_or_reported(tiny, capsys):
    fit(tiny(max_steps=6))
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate=0\.1, but .*run was begun with .*=0\.005: go back"):
        fit(tiny(optimizer=dict(learning_rate=0.1)))
    with pytest.raises(ValueError, match=r"seed=2, but .* was begun with seed=1"):
        fit(tiny(seed=2))
    capsys.readouterr()
    fit(tiny(max_steps=8))
    assert "goes on with trainer.max_steps=8 (was 6)" in capsys.readouterr().err


def test_a_corpus_that_has_changed_is_refused(tiny, tmp_path):
    files = [tmp_path / "mine.src", tmp_path / "mine.tgt"]

    def configuration(tokenizer_sees: str):
        for file, lines in zip(files, zip(*PAIRS, strict=True), strict=True):
            file.write_text("\n".join([*lines, tokenizer_sees]) + "\n", encoding="utf-8")
        paths = [str(file) for file in files]
        return tiny(
            corpora=dict(train=paths, valid=tiny().corpora.valid, test=tiny().corpora.test),
            cleaning=dict(drop_overlap=False, near_overlap=0.0, drop_identical=False),
            output=dict(data=str(tmp_path / "data")),
            **dict(max_steps=2, validation_sentences=0, metric="loss"),
        )

    run = fit(configuration("fish"))
    (run / "finished.json").unlink()
    with pytest.raises(ValueError, match=r"was trained with another tokenizer than the one in .*data: choose another"):
        fit(configuration("bear"))


# What goes wrong


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
def test_a_checkpoint_that_finds_the_disk_full_says_so(monkeypatch):
    monkeypatch.setattr("pipeline.training.callbacks.written_whole", lambda path: nullcontext(Path("/dev/full")))
    with pytest.raises(
        OSError, match=r"some\.ckpt could not be written \(.*No space left on device\); the checkpoint bef"
    ):
        WholeFiles().save_checkpoint({"weights": torch.zeros(100_000)}, "some.ckpt")


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


# Learning


def test_a_tiny_model_learns_to_translate_word_by_word(tiny):
    configuration = tiny(
        model=dict(d_model=32, d_ff=64, num_heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0),
        optimizer=dict(learning_rate=5e-3, warmup_steps=30),
        batching=dict(tokens_per_batch=400),
        **dict(max_steps=150, validate_every=150, checkpoint_every=150, log_every=50),
    )
    run = fit(configuration)
    translator = Translator.load(run)
    sources, targets = zip(*PAIRS, strict=True)
    translations = translator.translate(sources)
    assert sum(found == right for found, right in zip(translations, targets, strict=True)) >= 34
    assert len(set(translations)) == 36
    assert translator.translate(sources[::-1]) == translations[::-1]

    model, tokenizers, *_ = load_model(run)
    with torch.no_grad():  # blind to the source, it can only guess
        for layer in model.decoder:
            for parameter in layer.cross_attention.parameters():
                parameter.zero_()
    blind = Translator(TorchEngine(model), tokenizers, configuration)
    assert len(set(blind.translate(sources))) < 5


def test_ten_pairs_are_learnt_down_to_the_floor_of_label_smoothing(tiny, rows, tmp_path):
    r"""A sure model gives the right word 1 - ε + ε/V and every other one ε/V: what remains is that entropy."""
    for name, lines in zip(("few.src", "few.tgt"), zip(*PAIRS[:10], strict=True), strict=True):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    few = [str(tmp_path / "few.src"), str(tmp_path / "few.tgt")]
    configuration = tiny(
        corpora=dict(train=few, valid=few, test=few),
        tokenizer=dict(vocab_size=45),
        model=dict(d_model=32, d_ff=64, dropout=0.0),
        optimizer=dict(learning_rate=1e-2, warmup_steps=20),
        output=dict(data=str(tmp_path / "data")),
        **dict(max_steps=200, validate_every=200, checkpoint_every=200, log_every=50, label_smoothing=0.1),
    )
    vocabulary = load_model(fit(configuration)).tokenizers.target.vocab_size
    right, other = 0.9 + 0.1 / vocabulary, torch.tensor(0.1 / vocabulary).item()
    floor = -(right * torch.tensor(right).log() + (vocabulary - 1) * other * torch.tensor(other).log()).item()
    loss = rows(configuration)[-1]["valid_loss"]
    assert floor < loss < floor + 0.02


def test_the_last_checkpoints_can_be_averaged_by_hand(tiny, capsys):
    run = fit(tiny())
    average = runpy.run_path(str(ROOT / "scripts" / "average.py"))["average"]
    average(model=str(run), last=2)
    assert load_model(run / "average-2").metrics == {"average_of_steps": [10, 12]}
    with pytest.raises(ValueError, match=r"--model=.*model: no checkpoints in"):
        average(model=str(run / "model"))
    with pytest.warns(UserWarning, match=r"--last=50, but .*run has 3 \(trainer.keep_last\): all are averaged"):
        average(model=str(run), last=50)
    with pytest.raises(ValueError, match="--last=0 must be at least 1"):
        average(model=str(run), last=0)


def test_slurms_signal_is_heard_where_there_is_slurm(monkeypatch):
    signals = StopSignals(print)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    before = signal.getsignal(signal.SIGUSR1)
    signals.install()
    os.kill(os.getpid(), signal.SIGUSR1)
    signals.restore()
    assert signals.received == signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_second_interrupt_ends_at_once():
    signals = StopSignals(print)
    signals.receive(signal.SIGINT, None)
    with pytest.raises(KeyboardInterrupt):
        signals.receive(signal.SIGINT, None)


def test_the_record_can_be_read_by_any_program(tiny):
    run = fit(tiny())
    with open(run / "logs" / "metrics.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    assert lines[0][:2] == ["step", "epoch"]
    assert {len(line) for line in lines} == {len(lines[0])}
    assert [line[0] for line in lines[1:]] == ["2", "4", "5", "6", "8", "10", "12"]


def test_validation_logs_the_loss_per_token_of_all_pairs_and_scores_as_the_language_asks(
    tiny, rows, monkeypatch, tmp_path
):
    seen = []

    def spy(translations, references, language, **options):
        seen.append((references, language))
        return score(translations, references, language, **options)

    monkeypatch.setattr("pipeline.training.validation.score", spy)
    once = dict(max_steps=4, validate_every=4, checkpoint_every=4, keep_last=1)
    configuration = tiny(corpora=dict(target_language="zh"), output=dict(data=str(tmp_path / "data")), **once)
    model, tokenizers, *_ = load_model(checkpoints(Path(fit(configuration)))[-1])
    targets = [target for _, target in PAIRS]
    assert all(references == targets and language == "zh" for references, language in seen) and seen
    total = tokens = 0.0
    sides = (tokenizer.encode(list(side)) for tokenizer, side in zip(tokenizers, zip(*PAIRS, strict=True), strict=True))
    for pair in zip(*sides, strict=True):
        batch = collate([pair], 0)
        with torch.no_grad():
            logits = model(batch.source, batch.target_in)
        smoothing = configuration.trainer.label_smoothing
        total += cross_entropy(logits[0], batch.target_out[0], label_smoothing=smoothing, reduction="sum").item()
        tokens += batch.target_out.numel()
    (logged,) = [row["valid_loss"] for row in rows(configuration) if "valid_loss" in row]
    assert logged == pytest.approx(total / tokens, rel=1e-5)
