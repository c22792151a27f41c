"""The scripts as real processes: instant help, one-line errors, and the whole way from text to translations."""

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
HELP_WITHOUT_TORCH = """
import runpy, sys
sys.argv, sys.path[0] = [{script!r}, "--help"], {folder!r}
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as stop:
    assert not stop.code
assert "torch" not in sys.modules and "datasets" not in sys.modules, "slow to import"
"""


def run(*words: object, cwd: Path = ROOT, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", **options
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_comes_at_once(script):
    done = run("-c", HELP_WITHOUT_TORCH.format(script=str(script), folder=str(script.parent)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script.name}") and done.stderr == ""


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
def test_a_mistake_in_the_configuration_is_one_line(yaml, flags, status, message, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml or "seed: 1", encoding="utf-8")
    done = run(ROOT / "scripts/prepare.py", "--config", "run.yaml", *flags, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""
    assert not (tmp_path / "data/default").exists() and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("train.py", ["--config", "nowhere.yaml"], "nowhere.yaml"),
        ("translate.py", ["--model", "runs/nowhere"], "runs/nowhere: no such file or folder"),
        ("evaluate.py", ["--model", "runs/nowhere"], "runs/nowhere: no such file or folder"),
        ("evaluate.py", ["--hypothesis", "nowhere.txt", "--reference", "nowhere.txt"], "nowhere.txt"),
        ("evaluate.py", [], "give --model runs/X, or --hypothesis FILE and --reference FILE"),
    ],
)
def test_what_is_not_there_is_named_in_one_line(script, arguments, message, tmp_path):
    done = run(ROOT / "scripts" / script, *arguments, cwd=tmp_path, input="text\n")
    assert done.returncode in (1, 2)
    assert message in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


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


def test_given_files_and_two_models_are_compared(workplace):
    done = run(
        ROOT / "scripts/evaluate.py", "--model", "runs/words", "runs/words/model", "--source", "train.en",
        "--reference", "train.de", "--search.beam_size", "1", "--json", "both.json", cwd=workplace,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    both = json.loads((workplace / "both.json").read_text("utf-8"))
    first, second = both["systems"]
    assert (both["sentences"], both["evaluation_set"], first["search"]["beam_size"]) == (1200, "train.de", 1)
    assert second["p_against_first"] == {"bleu": 1, "chrf": 1, "ter": 1}
    assert "runs/words/model" in done.stdout and "tok:13a" in done.stdout


def test_a_finished_run_says_so_at_once(workplace):
    weights = (workplace / "runs/words/model/weights.safetensors").stat()
    done = run(ROOT / "scripts/train.py", "--config", "words.yaml", cwd=workplace)
    assert done.returncode == 0 and "runs/words is finished" in done.stderr
    assert (workplace / "runs/words/model/weights.safetensors").stat().st_mtime_ns == weights.st_mtime_ns


def test_benchmarks_run_on_the_corpus(workplace):
    done = run(
        ROOT / "scripts/benchmark.py", "train", "--config", "words.yaml", "--windows", "2", "--updates", "2",
        "--report", "speed.csv", cwd=workplace,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(workplace / "speed.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["precision"] for row in rows] == ["32", "bf16"]
    assert all(float(row["slowest"]) > 0 for row in rows)
    done = run(ROOT / "scripts/benchmark.py", "accuracy", "--config", "words.yaml", cwd=workplace)
    assert done.returncode == 0, done.stderr
