"""Training killed at any moment, and training by several processes."""

import multiprocessing
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from pytorch_lightning.utilities import rank_zero_only

from pipeline.checkpoint import checkpoints, load_model, read_checkpoint
from pipeline.cli import read_configuration, write_configuration
from pipeline.config import Configuration
from pipeline.training.fit import fit
from pipeline.training.training import begin_folder
from tests.pipeline.training.conftest import PAIRS

ROOT = Path(__file__).parents[3]


def newest(configuration) -> dict:
    return read_checkpoint(checkpoints(configuration.output.run)[-1])


def fit_alone(configuration):
    torch.set_num_threads(1)
    fit(configuration)


def fit_as_rank(rank, port, configuration, said):
    """As one of two processes that something else than Lightning has started."""
    os.environ |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    rank_zero_only.rank = rank  # Lightning has looked at the environment already, when it was imported
    with open(said, "a", encoding="utf-8") as sys.stderr:
        fit_alone(configuration)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture(scope="module")
def fork():
    """Processes that have all imports behind them when they begin."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pipeline.training.training"])
    return context


def test_a_configuration_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    def write_half(configuration, path):
        Path(path).write_text("model: {d_mod", encoding="utf-8")
        raise OSError("no space left")

    begin_folder(tmp_path, Configuration())
    monkeypatch.setattr("pipeline.training.training.write_configuration", write_half)
    with pytest.raises(OSError, match="no space left"):
        begin_folder(tmp_path, Configuration(seed=2))
    assert read_configuration(tmp_path / "config.yaml") == Configuration()


def test_killed_at_random_moments_training_ends_with_the_same_bits(tiny, fork, rows, tmp_path):
    options = dict(max_steps=24, checkpoint_every=1, validate_every=10, validation_sentences=5, log_every=5)
    whole, broken = tiny("whole", **options), tiny("broken", **options)
    fit(whole)
    moments = random.Random(1)
    killed_at = []
    for _ in range(3):
        before = checkpoints(broken.output.run)
        process = fork.Process(target=fit_alone, args=(broken,))
        process.start()
        while checkpoints(broken.output.run) == before and process.is_alive():
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.2))
        process.kill()
        process.join()
        killed_at.append(newest(broken)["global_step"])
    (Path(broken.output.run) / "checkpoints" / ".step-0000099.ckpt.1.unfinished").write_bytes(b"cut off")
    fit(broken)
    assert 0 < killed_at[0] < killed_at[-1] <= 24
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(newest(broken)[part], newest(whole)[part], rtol=0, atol=0)
    assert rows(broken) == rows(whole)
    assert not [path for path in Path(broken.output.run).rglob("*") if "unfinished" in path.name]


# Two processes, started by Lightning as by a user's command, and by others as on a cluster


def train(configuration, folder: Path, status: int = 0, before: str = "") -> str:
    """Train as ``scripts/train.py`` does, after the lines of ``before``; returns what was said."""
    folder.mkdir(exist_ok=True)
    write_configuration(configuration, folder / "config.yaml")
    script = folder / "train.py"
    script.write_text(
        f"{before}\nfrom pipeline.cli import main\nfrom pipeline.config import Configuration\n"
        "from pipeline.training.fit import fit\n\ndef train(configuration: Configuration):\n"
        "    fit(configuration)\n\nmain(train)\n",
        encoding="utf-8",
    )
    process = subprocess.run(
        [sys.executable, str(script), "--config", str(folder / "config.yaml")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert process.returncode == status, process.stderr
    return process.stderr


OUT_OF_MEMORY = """
import torch
from pipeline.training.module import TranslationModule

step = TranslationModule.training_step

def training_step(self, batch):
    if self.global_step == 5 and self.global_rank == 1:
        raise torch.OutOfMemoryError("out of memory")
    return step(self, batch)

TranslationModule.training_step = training_step
"""


def test_two_processes_train_as_one_that_accumulates_end_together_and_go_on(tiny, fork, rows, tmp_path):
    """36 pairs in batches of few, 7 pairs to validate: neither is divided evenly."""
    valid = [str(tmp_path / "valid.src"), str(tmp_path / "valid.tgt")]
    for path, lines in zip(valid, zip(*PAIRS[::5][:7], strict=True), strict=True):
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)
    options = dict(
        model=model,
        batching=dict(tokens_per_batch=75),
        corpora=dict(train=tiny().corpora.train, valid=valid, test=valid),
        output=dict(data=str(tmp_path / "data")),
        log_every=1,
    )
    one = tiny("one", accumulate_batches=2, **options)
    fit(one)
    two = tiny("two", devices=2, **options)

    said = train(two, tmp_path, status=1, before=OUT_OF_MEMORY)
    assert "too little memory: lower batching.tokens_per_batch=75" in said
    assert "Traceback" not in said
    assert newest(two)["global_step"] == 5

    log, port = tmp_path / "said", free_port()
    processes = [fork.Process(target=fit_as_rank, args=(rank, port, two, log)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(180)
    said = log.read_text("utf-8")
    assert [process.exitcode for process in processes] == [0, 0], said
    assert "from update 5" in said and said.count("update 12 (100%)") == 1
    assert len(rows(two)) == len(rows(one)) == 12
    for row, same in zip(rows(two), rows(one), strict=True):
        assert row == pytest.approx(same, rel=1e-5)
    torch.testing.assert_close(newest(two)["state_dict"], newest(one)["state_dict"], rtol=1e-4, atol=1e-5)
    shipped = [load_model(run.output.run).model.state_dict() for run in (two, one)]
    torch.testing.assert_close(*shipped, rtol=1e-4, atol=1e-5)
