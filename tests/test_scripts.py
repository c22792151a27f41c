"""The scripts: instant help, one-line errors, and, as real processes, the whole way from text to translations."""

import csv
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = [path for path in sorted(ROOT.glob("scripts/*.py")) if path.name != "command_line.py"]
HELP = """
import io, json, runpy, sys

found, slow = {}, {"torch", "datasets"}
for script in sys.argv[1:]:
    sys.argv, sys.stdout, sys.stderr = [script, "--help"], *(io.TextIOWrapper(io.BytesIO()) for _ in range(2))
    sys.path[0] = script.rpartition("/")[0]
    before = slow & sys.modules.keys()
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        sys.stdout.seek(0), sys.stderr.seek(0)
        loaded = sorted((slow & sys.modules.keys()) - before)
        found[script] = [ended.code, sys.stdout.read(), sys.stderr.read(), loaded]
print(json.dumps(found), file=sys.__stdout__)
"""


def run(*words: object, cwd: Path = ROOT, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", **options
    )


@pytest.fixture(scope="module")
def helps():
    """The status, help, complaints and slow imports of every script that is asked for help."""
    done = run("-c", HELP, *SCRIPTS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_comes_at_once(helps, script):
    status, said, complaints, slow = helps[str(script)]
    assert said.startswith(f"usage: {script.name}")
    assert (status, complaints, slow) == (0, "", [])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_python_without_the_packages_is_told_which_one_has_them(script):
    bare = subprocess.run([sys.executable, "-E", "-S", script], capture_output=True, text=True)
    assert bare.returncode == 1 and bare.stdout == ""
    assert bare.stderr.startswith(f"{script.name}: error: {sys.executable} has no package ")
    assert "use .venv/bin/python" in bare.stderr and bare.stderr.count("\n") == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_a_signature_and_a_call(script):
    lines = script.read_text("utf-8").splitlines()
    assert sum(line != "" for line in lines) <= 55
    assert f"python scripts/{script.name}" in "\n".join(lines[:4])


@pytest.mark.parametrize(
    ("yaml", "flags", "status", "message"),
    [
        ("model: {d_modle: 64}", [], 2, "unknown option model.d_modle: did you mean model.d_model?"),
        ("modle: {d_model: 64}", [], 2, "unknown option modle"),
        ("", ["--model.d_modle", "64"], 2, "unknown option model.d_modle: did you mean model.d_model?"),
        ("model: {d_model: wide}", [], 2, "model.d_model=wide: expected int"),
        ("", ["--trainer.max_steps", "many"], 2, "trainer.max_steps=many: expected int"),
        ("model: {d_model: 64, num_heads: 7}", [], 2, "model.num_heads=7 must divide model.d_model=64"),
        ("model: {norm_order: middle}", [], 2, "model.norm_order=middle: expected one of 'post', 'pre'"),
        ("corpora: {train: [nowhere.en, nowhere.de]}", [], 1, "nowhere.en"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_line(call, yaml, flags, status, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml or "seed: 1", encoding="utf-8")
    found, said, complaint = call("prepare.py", "--config", "run.yaml", *flags)
    assert found == status, complaint
    assert message in complaint and complaint.count("\n") == 1 and said == ""
    assert not (tmp_path / "data/default").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("train.py", ["--config", "nowhere.yaml"], "nowhere.yaml"),
        ("translate.py", ["--model", "runs/nowhere"], "runs/nowhere: no such file or folder"),
        ("evaluate.py", ["--model", "runs/nowhere"], "runs/nowhere: no such file or folder"),
        ("evaluate.py", ["--hypothesis", "nowhere.txt", "--reference", "nowhere.txt"], "nowhere.txt"),
        ("evaluate.py", [], "give --model runs/X, or --hypothesis FILE and --reference FILE"),
        ("evaluate.py", ["--hypothesis", "h", "--reference", "r", "--json", "r"], "--json=r is an input itself"),
        ("score.py", ["--model", "m", "--pairs", "p.tsv", "--output", "p.tsv"], "--output=p.tsv is an input itself"),
        ("attention.py", ["word", "--model", "m", "--output", "/dev/null"], "/dev/null is no folder to write into"),
        (
            "export.py",
            ["--model", "m", "--format", "safetensors", "--output", "/dev/null/x"],
            "/dev/null is no folder to write into",
        ),
    ],
)
def test_what_is_not_there_is_named_in_one_line(call, script, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, complaint = call(script, *arguments)
    assert status in (1, 2)
    assert message in complaint and complaint.count("\n") == 1 and said == ""


WORDS = dict(
    zip(
        "the a red blue old small big house tree dog bird river stone sees finds likes paints under near".split(),
        "der ein rote blaue alte kleine große Haus Baum Hund Vogel Fluss Stein sieht findet mag malt unter bei".split(),
        strict=True,
    )
)


def corpus(count: int) -> list[tuple[str, str]]:
    """Sentences of a language and of another that differs in every word."""
    choose = random.Random(1)
    sentences = [choose.choices(list(WORDS), k=choose.randint(3, 6)) for _ in range(count)]
    return [(" ".join(words), " ".join(WORDS[word] for word in words)) for words in sentences]


CONFIG = """
corpora: {train: [train.en, train.de], valid_size: 40, test_size: 40}
tokenizer: {vocab_size: 120}
batching: {tokens_per_batch: 512}
model: {encoder_layers: 1, decoder_layers: 1, d_model: 64, d_ff: 128, num_heads: 4, dropout: 0.0}
optimizer: {schedule: linear, learning_rate: 1.0e-2, warmup_steps: 20}
trainer: {max_steps: 150, validate_every: 50, checkpoint_every: 50, log_every: 10, validation_sentences: 10}
search: {beam_size: 2}
output: {data: data/words, run: runs/words}
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with a corpus, and what the four scripts made of it."""
    folder = tmp_path_factory.mktemp("workplace")
    for side, name in enumerate(("train.en", "train.de")):
        lines = [pair[side] for pair in corpus(1200)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "words.yaml").write_text(CONFIG, encoding="utf-8")
    for script, arguments in {
        "prepare.py": ["--config", "words.yaml"],
        "train.py": ["--config", "words.yaml"],
        "evaluate.py": ["--model", "runs/words", "--json", "scores.json"],
    }.items():
        done = run(ROOT / "scripts" / script, *arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_training_learns_what_was_held_out(workplace):
    with open(workplace / "runs/words/logs/metrics.csv", encoding="utf-8") as file:
        losses = [float(row["valid_loss"]) for row in csv.DictReader(file) if row["valid_loss"]]
    assert losses[-1] < losses[0] / 1.2
    (system,) = json.loads((workplace / "scores.json").read_text("utf-8"))["systems"]
    assert system["scores"]["chrf"]["value"] > 60


def test_the_test_set_was_translated_in_order_and_kept(workplace):
    kept = workplace / "runs/words/evaluations/test"
    lines = {name: (kept / f"{name}.txt").read_text("utf-8").splitlines() for name in ("source", "reference")}
    assert len(lines["source"]) == 40
    assert [" ".join(WORDS[word] for word in line.split()) for line in lines["source"]] == lines["reference"]
    again = run(
        ROOT / "scripts/evaluate.py", "--json", "-", "--hypothesis", kept / "translation.txt", "--reference",
        kept / "reference.txt",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    before, after = (
        json.loads(text)["systems"][0]["scores"] for text in ((kept / "scores.json").read_text("utf-8"), again.stdout)
    )
    assert before == after


def test_translating_the_test_set_gives_what_the_evaluation_scored(workplace):
    kept = workplace / "runs/words/evaluations/test"
    done = run(ROOT / "scripts/translate.py", "--model", "runs/words", "--input", kept / "source.txt", cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (kept / "translation.txt").read_text("utf-8")


def test_given_files_and_two_models_are_compared(workplace, call, monkeypatch):
    monkeypatch.chdir(workplace)
    status, said, complaint = call(
        "evaluate.py", "--model", "runs/words", "runs/words/model", "--source", "train.en", "--reference", "train.de",
        "--search.beam_size", "1", "--json", "both.json",
    )  # fmt: skip
    assert status == 0, complaint
    both = json.loads((workplace / "both.json").read_text("utf-8"))
    first, second = both["systems"]
    assert (both["sentences"], both["evaluation_set"], first["search"]["beam_size"]) == (1200, "train.de", 1)
    assert second["p_against_first"] == {"bleu": 1, "chrf": 1, "ter": 1}
    assert "runs/words/model" in said and "tok:13a" in said


def test_a_finished_run_says_so_at_once(workplace):
    weights = (workplace / "runs/words/model/weights.safetensors").stat()
    done = run(ROOT / "scripts/train.py", "--config", "words.yaml", cwd=workplace)
    assert done.returncode == 0 and "runs/words is finished" in done.stderr
    assert (workplace / "runs/words/model/weights.safetensors").stat().st_mtime_ns == weights.st_mtime_ns


def test_benchmarks_run_on_the_corpus(workplace, call, monkeypatch):
    monkeypatch.chdir(workplace)
    size = ["--windows", "2", "--updates", "2", "--report", "speed.csv"]
    status, _, complaint = call("benchmark.py", "train", "--config", "words.yaml", *size)
    assert status == 0, complaint
    with open(workplace / "speed.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["precision"] for row in rows] == ["32", "bf16"]
    assert all(float(row["slowest"]) > 0 for row in rows)
    status, _, complaint = call("benchmark.py", "accuracy", "--config", "words.yaml")
    assert status == 0, complaint
