"""Training on a stream: windows instead of epochs, and nothing else is different."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pipeline.checkpoint import checkpoints
from pipeline.data import streaming
from pipeline.training.fit import fit
from tests.pipeline.training import test_kills
from tests.pipeline.training.conftest import PAIRS
from tests.pipeline.training.test_kills import fit_alone, newest

fork = test_kills.fork


@pytest.fixture
def streamed(tiny, tmp_path):
    """``streamed(run)``: a run of 30 updates on 300 pairs in windows of 90, more than one pass."""
    files = [str(tmp_path / "many.src"), str(tmp_path / "many.tgt")]
    for path, side in zip(files, zip(*PAIRS, strict=True), strict=True):
        Path(path).write_text("".join(f"{side[i % 36]} {i}\n" for i in range(300)), encoding="utf-8")

    def configure(run: str):
        return tiny(
            run,
            corpora=dict(train=files, valid=tiny().corpora.valid, test=tiny().corpora.test, stream_window=90),
            tokenizer=dict(vocab_size=70),
            batching=dict(tokens_per_batch=200),
            preparation=dict(workers=1),
            output=dict(data=str(tmp_path / "data")),
            **dict(max_steps=30, checkpoint_every=4, validate_every=15, validation_sentences=0, metric="loss"),
        )

    return configure


def test_a_streamed_run_that_was_killed_ends_with_the_same_bits(streamed, fork, rows, capsys, monkeypatch):
    monkeypatch.setattr(streaming, "multiprocessing", SimpleNamespace(get_context=lambda name: fork))
    whole, broken = streamed("whole"), streamed("broken")
    fit(whole)
    assert "window 3: 90 of 90 pairs" in capsys.readouterr().err
    process = fork.Process(target=fit_alone, args=(broken,))
    process.start()
    while not checkpoints(broken.output.run) or newest(broken)["global_step"] < 8:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert 8 <= newest(broken)["global_step"] < 30
    fit(broken)
    for part in ("state_dict", "optimizer_states"):
        torch.testing.assert_close(newest(broken)[part], newest(whole)[part], rtol=0, atol=0)
    assert rows(broken) == rows(whole)
    assert rows(whole)[-1]["epoch"] == 1
    assert not list(Path(broken.output.run).glob("stream*"))
