"""Training from a configuration to a run folder: what a run leaves, and what it has learned."""

import csv
import runpy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from pipeline.checkpoint import average_states, checkpoints, load_model, model_state, read_checkpoint, step_of
from pipeline.data.batching import collate
from pipeline.inference.engine import TorchEngine
from pipeline.inference.evaluation import score
from pipeline.inference.translator import Translator
from pipeline.training.fit import fit
from pipeline.training.optimizer import SCHEDULES
from tests.pipeline.training.conftest import PAIRS, assert_same_training

ROOT = Path(__file__).parents[3]


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
