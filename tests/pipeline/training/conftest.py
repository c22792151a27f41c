"""A corpus that a tiny model learns in seconds, and runs on it."""

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch

from pipeline.checkpoint import checkpoints, read_checkpoint
from pipeline.config import Configuration
from pipeline.data.tokenizer import PAD_ID
from pipeline.training import run_log
from pipeline.training.module import TranslationModule
from pipeline.training.run_log import read_rows

ADJECTIVES = {"red": "rot", "blue": "blau", "green": "grün", "black": "schwarz"}
NOUNS = {"cat": "Katze", "dog": "Hund", "bird": "Vogel"}
VERBS = {"runs": "rennt", "sleeps": "schläft", "eats": "frisst"}

PAIRS = [
    (" ".join(words), " ".join(table[word] for table, word in zip((ADJECTIVES, NOUNS, VERBS), words, strict=True)))
    for words in itertools.product(ADJECTIVES, NOUNS, VERBS)
]
"""36 sentences and their translations, word by word."""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def curves():
    """For a test that looks at the curves: elsewhere they are not drawn, which takes longer than a tiny run."""


@pytest.fixture(autouse=True)
def no_curves(request, monkeypatch):
    if "curves" not in request.fixturenames:
        monkeypatch.setattr(run_log, "draw_curves", lambda rows, path: None)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A folder with ``train.src`` and ``train.tgt``; prepared data go there too."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, lines in zip(("train.src", "train.tgt"), zip(*PAIRS, strict=True), strict=True):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def tiny(corpus, tmp_path):
    """``tiny(max_steps=..., model={...})``: a run of seconds; plain options are the trainer's."""

    def configure(run: str = "run", seed: int = 1, **options) -> Configuration:
        files = [str(corpus / "train.src"), str(corpus / "train.tgt")]
        model = dict(d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
        trainer = dict(max_steps=12, validate_every=5, checkpoint_every=4, log_every=2, keep_last=3)
        trainer |= dict(accelerator="cpu", precision="32")  # the same on every machine
        sections = {
            "corpora": dict(train=files, valid=files, test=files),
            "cleaning": dict(drop_overlap=False, near_overlap=0.0),
            "tokenizer": dict(vocab_size=60),
            "batching": dict(tokens_per_batch=100),
            "model": model,
            "optimizer": dict(schedule="inverse_sqrt", learning_rate=5e-3, warmup_steps=10),
            "trainer": trainer,
            "search": dict(beam_size=2, max_length_ratio=1.0),  # models that know nothing go on to their limit
            "output": dict(data=str(corpus / "data"), run=str(tmp_path / run)),
        }
        fields = {field.name: field for field in dataclasses.fields(Configuration)}
        given = {name: options.pop(name) for name in list(options) if name in fields}
        sections["trainer"] |= options
        for name, values in given.items():
            sections[name] = sections.get(name, {}) | values
        return Configuration(
            seed=seed, **{name: fields[name].default_factory(**values) for name, values in sections.items()}
        )

    return configure


@pytest.fixture
def rows():
    """``rows(configuration)``: the run's log, without what depends on the clock."""
    clocked = {"minutes", "source_tokens_per_second", "target_tokens_per_second", "waiting"}

    def read(configuration: Configuration) -> list[dict[str, float]]:
        path = Path(configuration.output.run) / "logs" / "metrics.csv"
        return [{name: value for name, value in row.items() if name not in clocked} for row in read_rows(path)]

    return read


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
