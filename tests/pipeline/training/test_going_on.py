"""A run that is interrupted goes on as if nothing had been; one with other data or other options does not."""

import os
import signal

import pytest

from pipeline.training.fit import fit
from pipeline.training.optimizer import SCHEDULES
from pipeline.training.signals import StopSignals
from tests.pipeline.training.conftest import PAIRS, assert_same_training, newest, stop_at


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
