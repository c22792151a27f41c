"""A sweep goes on from what lies on disk, loses nothing to one failure, and compares only what is comparable."""

import csv
import io
import json
import os
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from models.config import ModelConfig
from pipeline.benchmarks.sweep import alone, configurations, markdown, sweep, under_one_budget
from pipeline.cli import read_configuration, write_configuration
from pipeline.config import Configuration, OutputConfig, TrainerConfig
from pipeline.training.fit import fit
from pipeline.training.module import TranslationModule

ROOT = Path(__file__).parents[2]

# Programs that leave what the real ones do, and a line of what they were asked for; in ``trouble.json``, how they fail.
PROGRAM = """
import json, sys
from pathlib import Path

here, words = Path(__file__).parent, sys.argv[1:]
run = next((Path(words[words.index(word) + 1]) for word in ("--model", "--output.run") if word in words), here)
with open(here / "calls", "a") as calls:
    print(*dict.fromkeys([Path(__file__).stem, run.name]), file=calls)
print("much to say", file=sys.stderr)
exec(json.loads((here / "trouble.json").read_text()).get(run.name, ""))
"""
SCORES = {"bleu": {"title": "BLEU", "value": 28.837, "signature": "b:1|v:2"}}
SCORES |= {"chrf": {"title": "chrF", "value": 50.1, "signature": "c:1"}}
FIGURES = {"hardware": "an abacus", "precision": "32", "speed": 7358.4, "parameters_millions": 2.6056}
WORK = {
    "prepare": "(here / 'report.json').write_text(json.dumps({'fingerprint': 'f' * 64}))",
    "train": "run.mkdir(exist_ok=True)\nfile = run / 'finished.json'\nfile.exists() or file.write_text('{}')\n"
    "(run / 'config.yaml').write_text('trainer: {}')",
    "evaluate": "file = run / 'evaluations/test/scores.json'\nfile.parent.mkdir(parents=True, exist_ok=True)\n"
    f"file.write_text(json.dumps({{'systems': [{{'scores': {SCORES}}}]}}))",
    "measure": f"(run / 'measure.json').write_text(json.dumps({FIGURES}))",
}


@pytest.fixture
def start(tmp_path):
    """``start(*mechanisms)`` sweeps with the programs above, and returns what each was asked for."""
    scripts = tmp_path / "prepare"  # where the prepared corpus is, too
    scripts.mkdir()
    for name, work in WORK.items():
        (scripts / f"{name}.py").write_text(f"{PROGRAM}\n{work}\n")

    def start(
        *mechanisms: str,
        trouble: dict[str, str] | None = None,
        measure_again: bool = False,
        report: str = str(tmp_path / "new/table.csv"),
        **sections,
    ):
        (scripts / "calls").write_text("")
        (scripts / "trouble.json").write_text(json.dumps(trouble or {}))
        sections = {"trainer": TrainerConfig(max_steps=6)} | sections
        configuration = Configuration(output=OutputConfig(data=str(scripts)), **sections)
        try:
            sweep(configuration, list(mechanisms), tmp_path / "sweep", measure_again, report, scripts)
        finally:
            start.calls = (scripts / "calls").read_text().splitlines()
        return start.calls

    return start


def test_all_are_trained_before_the_first_is_measured_and_nothing_is_done_twice(start, tmp_path, capfd):
    assert start("baseline", "rotary") == [
        "prepare",
        *("train baseline", "train rotary"),
        *("evaluate baseline", "evaluate rotary"),
        *("measure baseline", "measure rotary"),
    ]
    said = capfd.readouterr().err
    assert "[2/2] rotary: train" in said and "[1/2] baseline: measure" in said and said.count("much to say") == 7
    # Whether a run with another configuration is finished is for train.py to say.
    assert start("baseline", "rotary") == ["prepare", "train baseline", "train rotary"]
    assert start("rotary", measure_again=True) == ["prepare", "train rotary", "measure rotary"]
    (tmp_path / "sweep/baseline/evaluations/test/scores.json").unlink()
    assert start("baseline") == ["prepare", "train baseline", "evaluate baseline"]
    (tmp_path / "sweep/baseline/finished.json").touch()  # trained on since
    assert start("baseline") == ["prepare", "train baseline", "evaluate baseline", "measure baseline"]


def test_a_failure_is_a_row_of_the_table_and_the_others_go_on(start, tmp_path):
    trouble = {
        "rotary": "sys.exit('train.py: error: no rotation today')",
        "elu": "import os; os.kill(os.getpid(), 9)",
        "shaw": "sys.exit(3) if 'measure' in __file__ else None",
    }
    with pytest.raises(ValueError, match="3 of 4 mechanisms failed: rotary, elu, shaw"):
        start("rotary", "elu", "shaw", "alibi", trouble=trouble)
    assert not {"evaluate rotary", "evaluate elu"} & set(start.calls) and "measure alibi" in start.calls
    with open(tmp_path / "new/table.csv", encoding="utf-8") as file:
        rows = {row.pop("mechanism"): row for row in csv.DictReader(file)}
    assert {name: row["error"] for name, row in rows.items()} == {
        "rotary": "train.py: error: no rotation today",
        "elu": "train.py was ended by signal 9",
        "shaw": "much to say",
        "alibi": "",
    }
    assert rows["alibi"]["BLEU"] == "28.837" and rows["alibi"]["speed"] == "7358.4"
    assert start("rotary", "elu", "shaw", "alibi")[-1] == "measure shaw"


def test_the_table_for_a_readme_tells_scores_costs_and_conditions(start, tmp_path, capfd):
    start("baseline")
    table = (tmp_path / "sweep/table.md").read_text("utf-8")
    assert table == (
        "| mechanism | BLEU | chrF | speed | parameters millions |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| baseline | 28.84 | 50.10 | 7,358 | 2.61 |\n"
        "\n"
        "6 updates of up to 4,096 tokens per device each; an abacus, precision 32; BLEU b:1|v:2; chrF c:1\n"
    )
    assert "BLEU b:1|v:2" in capfd.readouterr().out


def test_without_cuda_the_table_says_which_kernel_computes_flex(start, tmp_path, monkeypatch, capfd):
    note = "without CUDA, flex is computed by the fused kernel"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    start("flex")
    assert note in capfd.readouterr().out.replace("\n", " ")
    assert (tmp_path / "sweep/table.md").read_text("utf-8").endswith(f"; {note}\n")
    start("baseline")
    assert note not in capfd.readouterr().out


def test_a_report_holds_numbers_as_they_were_measured(start, tmp_path):
    start("baseline", report=str(tmp_path / "table.json"))
    (row,) = json.loads((tmp_path / "table.json").read_text("utf-8"))["rows"]
    assert row == {
        "mechanism": "baseline",
        "BLEU": 28.837,
        "chrF": 50.1,
        "speed": 7358.4,
        "parameters_millions": 2.6056,
    }


def test_a_run_that_ended_as_it_is_configured_is_not_trained_and_one_with_another_configuration_is(start, tmp_path):
    start("rotary")
    effective = tmp_path / "sweep/rotary/config.yaml"
    configuration = under_one_budget(read_configuration(tmp_path / "sweep/config.yaml"))
    rotary = configurations(configuration, ["rotary"], tmp_path / "sweep")["rotary"]
    assert (rotary.model.positions, rotary.output.run) == ("rotary", str(tmp_path / "sweep/rotary"))
    write_configuration(rotary, effective)
    assert start("rotary") == ["prepare"]
    write_configuration(replace(rotary, trainer=replace(rotary.trainer, max_steps=99)), effective)
    assert start("rotary") == ["prepare", "train rotary"]


def test_every_mechanism_that_does_not_go_with_the_configuration_is_named_before_anything_is_done(
    start, tmp_path, capfd
):
    model = ModelConfig(attention_dropout=0.1)
    refused = "does not go with performer, flex: change it, or leave them out by --mechanisms"
    with pytest.raises(ValueError, match=refused):
        start("baseline", "performer", "rotary", "flex", model=model)
    reason = "model.attention_dropout=0.1 does not go with model."
    performer, flex = capfd.readouterr().err.splitlines()
    assert performer.startswith(f"performer: {reason}attention=performer")
    assert flex.startswith(f"flex: {reason}attention_kernel=flex")
    assert start.calls == [] and not (tmp_path / "sweep").exists()
    start("baseline", "rotary", model=model)


def test_a_row_that_failed_has_its_error_and_no_figures():
    assert markdown([{"mechanism": "a", "BLEU": 1.0}, {"mechanism": "b", "error": "x | y"}]) == (
        "| mechanism | BLEU | error |\n"
        "| --- | ---: | ---: |\n"
        "| a | 1.00 |  |\n"
        "| b |  | x \\| y |\n"
    )  # fmt: skip


def test_only_the_number_of_updates_ends_a_training():
    limits = dict(max_steps=9, max_epochs=2, max_minutes=1.5, patience=3, log_every=7)
    budget = under_one_budget(Configuration(trainer=TrainerConfig(**limits)))
    assert budget.trainer == TrainerConfig(max_steps=9, log_every=7)
    with pytest.raises(ValueError, match="trainer.max_steps=0: say how many updates each mechanism gets"):
        under_one_budget(Configuration(trainer=TrainerConfig(max_steps=0, max_minutes=1)))
    with pytest.raises(ValueError, match="trainer.precision=16 is not measured: choose bf16, 32 or auto"):
        under_one_budget(Configuration(trainer=TrainerConfig(precision="16")))


def test_what_would_not_be_comparable_is_refused(start, tmp_path):
    with pytest.raises(ValueError, match="--mechanisms roatry: choose among baseline, learned"):
        start("roatry")
    with pytest.raises(ValueError, match="--mechanisms: name at least one of baseline, learned"):
        start()
    with pytest.raises(ValueError, match="--report table.md: choose a name that ends in one of .csv, .json"):
        start("baseline", report="table.md")
    assert not (tmp_path / "sweep").exists()
    start("baseline")
    with pytest.raises(ValueError, match="trainer.max_steps=8, but .*sweep was begun with trainer.max_steps=6: go ba"):
        start("baseline", trainer=TrainerConfig(max_steps=8))
    assert start.calls == []
    prepare = tmp_path / "prepare/prepare.py"
    prepare.write_text(prepare.read_text().replace("'f'", "'e'"))
    with pytest.raises(ValueError, match="the corpus in .*prepare has changed since .*sweep was begun"):
        start("rotary")
    assert start.calls == ["prepare"]


def test_what_cannot_be_prepared_is_said_at_once(start):
    with pytest.raises(ValueError, match="prepare.py: error: no corpus"):
        start("baseline", trouble={"prepare": "sys.exit('prepare.py: error: no corpus')"})
    assert start.calls == ["prepare"]


def test_a_folder_belongs_to_one_sweep_and_to_the_programs_that_it_left_behind(start, tmp_path):
    with alone(tmp_path) as lock:
        orphan = subprocess.Popen(["sleep", "60"], pass_fds=[lock])
        with (
            pytest.raises(ValueError, match="another sweep, or a program that it left behind, is at work in"),
            alone(tmp_path),
        ):
            pass
    try:
        with pytest.raises(ValueError, match="wait for its end, or choose another --folder"), alone(tmp_path):
            pass
    finally:
        orphan.kill()
        orphan.wait()
    with alone(tmp_path):
        pass


CONFIG = """
corpora: {train: [train.en, train.de], valid_size: 20, test_size: 20}
tokenizer: {vocab_size: 60}
batching: {tokens_per_batch: 200}
model: {encoder_layers: 1, decoder_layers: 1, d_model: 16, d_ff: 32, num_heads: 2}
trainer: {max_steps: 40, max_minutes: 0.001, validate_every: 40, checkpoint_every: 2, validation_sentences: 5}
search: {beam_size: 2, max_length_ratio: 1, max_length_extra: 0}
output: {data: data/words}
"""


def test_from_a_training_that_was_stopped_the_real_programs_go_on_to_the_table(tmp_path, monkeypatch):
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
    pairs = [(f"{a} {b}", f"{b}n {a}n") for a in words for b in words[::3]]
    for side, name in enumerate(("train.en", "train.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    (tmp_path / "words.yaml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    configuration = under_one_budget(read_configuration("words.yaml"))
    step = TranslationModule.training_step

    def stopped(self, batch):
        if self.global_step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(TranslationModule, "training_step", stopped)
        fit(configurations(configuration, ["rotary"], Path("sweep"))["rotary"])

    command = [sys.executable, str(ROOT / "scripts/sweep.py"), "--config", "words.yaml", "--folder", "sweep"]
    command += ["--mechanisms", "rotary", "--report", "table.json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    swept = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert swept.returncode == 0, swept.stderr
    assert "sweep/rotary: timing training" in swept.stderr and "timing the translation of 20" in swept.stderr
    assert "going on with sweep/rotary" in swept.stderr and "from update 6" in swept.stderr
    assert "rotary" in swept.stdout and "tok:13a" in swept.stdout
    (row,) = json.loads((tmp_path / "table.json").read_text("utf-8"))["rows"]
    figures = [value for name, value in row.items() if name not in ("mechanism", "BLEU")]
    assert len(figures) == 5 and min(figures) >= 0
    effective = read_configuration("sweep/rotary/config.yaml")
    assert (effective.model.positions, effective.trainer.max_minutes) == ("rotary", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "."], "--model=.: no run there: give the folder that scripts/train.py wrote (runs/NAME)"),
        (["--model", "file"], "--model=file: no run there"),
        (["--model", "run/model"], "--model=run/model: no run there"),
        (["--model", "begun"], "--model=begun: this run has no model yet: train on, then measure"),
        (["--model", "run", "--report", "m.csv"], "--report m.csv: choose a name that ends in .json"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line_and_without_torch(options, message, tmp_path, monkeypatch, capsys):
    for folder in ("run/checkpoints", "run/model", "begun/checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("file", "run/config.yaml", "run/model/config.yaml", "begun/config.yaml"):
        (tmp_path / file).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["measure.py", *options])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts/measure.py"), run_name="__main__")
    assert capsys.readouterr().err.startswith(f"measure.py: error: {message}")
