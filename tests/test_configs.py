"""Every file in configs/ is a valid run, alone or laid over another, by the files and by flags."""

import dataclasses
import io
import re
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.benchmarks.sweep import MECHANISMS as SWEPT
from pipeline.cli import main, read_configuration, write_configuration
from pipeline.config import Configuration

CONFIGS = sorted(Path(__file__).parents[1].glob("configs/*.yaml"))
MECHANISMS = [path for path in CONFIGS if path.stem.startswith("with_")]
"""Overlays of a choice or two, for any run."""

OVERLAYS = {"multi30k_local": "multi30k_en_de", "wmt14_en_de_big": "wmt14_en_de_base"}
OVERLAYS |= {path.stem: "multi30k_en_de" for path in MECHANISMS} | {"clean_web": "small"}


def layered(monkeypatch, *arguments: str) -> Configuration:
    """What the command line makes of them."""
    seen = []

    def train(configuration: Configuration):
        """A command that looks at its configuration."""
        seen.append(configuration)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys, "argv", ["train.py", *map(str, arguments)])
    main(train)
    return seen[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_says_the_same_read_written_and_given(path, monkeypatch, tmp_path):
    configuration = read_configuration(path)
    write_configuration(configuration, tmp_path / "copy.yaml")
    assert read_configuration(tmp_path / "copy.yaml") == configuration
    assert layered(monkeypatch, "--config", path) == configuration


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_gives_every_value_that_it_names(path):
    sections = yaml.safe_load(path.read_text("utf-8"))
    given = dataclasses.asdict(read_configuration(path))
    assert all(given[section][name] == value for section, fields in sections.items() for name, value in fields.items())


@pytest.mark.parametrize(
    "path", [path for path in CONFIGS if not path.stem.startswith(("with_", "clean_"))], ids=lambda path: path.stem
)
def test_a_run_has_a_folder_of_its_own(path):
    assert yaml.safe_load(path.read_text("utf-8"))["output"]["run"] == f"runs/{path.stem}"


@pytest.mark.parametrize("path", MECHANISMS, ids=lambda path: path.stem)
def test_a_mechanism_is_a_line_that_says_whose_it_is_and_three_of_what_it_changes(path):
    comment, *lines = path.read_text("utf-8").splitlines()
    assert re.search(r"^# Overlay: .*\([A-Z].*, \d{4}\)", comment) and len(lines) <= 3
    sections = yaml.safe_load(path.read_text("utf-8"))
    assert sections["model"] and sections.keys() <= {"model", "optimizer"}
    base = dataclasses.asdict(read_configuration(path.with_name("multi30k_en_de.yaml")))
    assert all(base[section][name] != value for section, fields in sections.items() for name, value in fields.items())


def test_the_sweep_takes_each_mechanism_once_after_the_baseline():
    baseline, *others = SWEPT
    assert baseline == "baseline"
    assert sorted(f"with_{name}" for name in others) == [path.stem for path in MECHANISMS]


@pytest.mark.parametrize(("overlay", "base"), OVERLAYS.items())
def test_an_overlay_changes_what_it_names_and_nothing_else(overlay, base, monkeypatch):
    paths = {path.stem: path for path in CONFIGS}
    base_values = dataclasses.asdict(read_configuration(paths[base]))
    both = dataclasses.asdict(layered(monkeypatch, "--config", paths[base], "--config", paths[overlay]))
    named = yaml.safe_load(paths[overlay].read_text("utf-8"))
    for section, fields in named.items():
        base_values[section] |= fields
    assert both == base_values


def test_flags_have_the_last_word(monkeypatch):
    path = next(path for path in CONFIGS if path.stem == "quickstart")
    configuration = layered(monkeypatch, "--config", path, "--trainer.max_minutes", "0.5", "--model.num_heads=2")
    assert (configuration.trainer.max_minutes, configuration.model.num_heads) == (0.5, 2)
    assert configuration.tokenizer == read_configuration(path).tokenizer


def test_the_paper_s_models_have_the_paper_s_numbers(monkeypatch):
    paths = {path.stem: path for path in CONFIGS}
    base = read_configuration(paths["wmt14_en_de_base"])
    big = layered(monkeypatch, "--config", paths["wmt14_en_de_base"], "--config", paths["wmt14_en_de_big"])
    model, optimizer = base.model, base.optimizer
    assert (model.encoder_layers, model.decoder_layers, model.d_model, model.d_ff, model.num_heads) == (
        6,
        6,
        512,
        2048,
        8,
    )
    assert (model.dropout, model.attention_dropout, model.norm_order, model.tied_embeddings) == (
        0.1,
        0.0,
        "post",
        "all",
    )
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.warmup_steps) == (0.9, 0.98, 1e-9, 4000)
    assert (optimizer.schedule, optimizer.learning_rate, optimizer.clip_norm) == ("noam", 1.0, 0.0)
    assert (base.trainer.label_smoothing, base.trainer.max_steps, base.search.beam_size) == (0.1, 100_000, 4)
    assert 8 * base.batching.tokens_per_batch * base.trainer.accumulate_batches == pytest.approx(25_000, rel=0.05)
    assert (big.model.d_model, big.model.d_ff, big.model.num_heads, big.model.dropout) == (1024, 4096, 16, 0.3)
    assert (big.trainer.max_steps, big.optimizer) == (300_000, base.optimizer)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_names_no_place_of_one_machine(path):
    assert not re.search(r"\.\./|(?<![\w.])/(?:home|root|tmp|work)", path.read_text("utf-8"))
