"""The work that a benchmark counts is the work that torch does, and its report is what it measured."""

import csv
import io
import json
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.config import ModelConfig
from models.transformer import Transformer
from pipeline.benchmarks import commands
from pipeline.benchmarks.baselines import BASELINES
from pipeline.benchmarks.decoding import Processes
from pipeline.benchmarks.report import cell, publish
from pipeline.benchmarks.throughput import training_flops
from pipeline.checkpoint import build_model, save_model
from pipeline.cli import main
from pipeline.config import Configuration, SearchConfig, TokenizerConfig
from pipeline.data.batching import collate
from pipeline.data.tokenizer import PAD_ID, train_tokenizers
from pipeline.inference.translator import Translator

CONFIG = ModelConfig(
    encoder_layers=3, decoder_layers=2, d_model=16, d_ff=40, num_heads=2, dropout=0.0, attention_kernel="plain"
)
WORDS = 50


def test_the_counted_work_is_the_forward_pass_three_times_without_what_the_mask_hides():
    batch = collate([([4] * 6, [5] * 8), ([6] * 6, [7] * 8)], update_tokens=18)
    model = Transformer(CONFIG, WORDS, WORDS, PAD_ID)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch.source, batch.target_in)
    length, sentences = 9, 2
    hidden_pairs = length * (length - 1) // 2
    hidden = CONFIG.decoder_layers * sentences * hidden_pairs * 2 * 2 * CONFIG.d_model
    assert training_flops(CONFIG, WORDS, batch) == 3 * (counter.get_total_flops() - hidden)


def test_padding_counts_nothing():
    short, long = ([4] * 3, [5] * 2), ([4] * 9, [5] * 12)
    together = training_flops(CONFIG, WORDS, collate([short, long], update_tokens=16))
    apart = [training_flops(CONFIG, WORDS, collate([pair], update_tokens=16)) for pair in (short, long)]
    assert together == sum(apart)


@pytest.mark.parametrize("name, norm_order", [("torch", "pre"), ("marian", "post")])
def test_a_baseline_has_our_parameters_and_a_loss_without_padding(name, norm_order):
    if name == "marian":
        pytest.importorskip("transformers")
    config = replace(CONFIG, norm_order=norm_order)
    torch.manual_seed(0)
    baseline = BASELINES[name](config, WORDS, 0.1).eval()
    ours = Transformer(config, WORDS, WORDS, PAD_ID)
    trained, expected = (sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (baseline, ours))
    assert trained == expected
    short, long = ([4] * 3, [5] * 2), ([4] * 9, [5] * 12)
    together, *apart = (
        baseline.loss_sums(collate(pairs, update_tokens=16))[0] for pairs in ([short, long], [short], [long])
    )
    torch.testing.assert_close(together, sum(apart), rtol=1e-4, atol=1e-4)


ROWS = [{"kernel": "plain", "loss_error": 1.23456e-7}, {"kernel": "flex", "note": "out of memory"}]


def test_a_report_is_written_whole_into_a_folder_that_need_not_be_there(tmp_path, capsys):
    publish(ROWS, "errors", str(tmp_path / "new/r.json"))
    publish(ROWS, "errors", str(tmp_path / "new/r.csv"))
    assert "1.23e-07" in capsys.readouterr().out
    written = json.loads((tmp_path / "new/r.json").read_text("utf-8"))
    assert written["rows"] == ROWS and written["title"].startswith("errors on ")
    with open(tmp_path / "new/r.csv", encoding="utf-8", newline="") as file:
        plain, flex = csv.DictReader(file)
    assert float(plain["loss_error"]) == 1.23456e-7 and flex["note"] == "out of memory"
    with pytest.raises(TypeError):
        publish([{"kernel": "plain", "loss_error": 1j}], "errors", str(tmp_path / "new/r.json"))
    assert json.loads((tmp_path / "new/r.json").read_text("utf-8")) == written
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["r.csv", "r.json"]


@pytest.mark.parametrize("command", [commands.train, commands.accuracy])
def test_a_report_of_another_kind_is_refused_before_anything_is_measured(command, tmp_path):
    with pytest.raises(ValueError, match=r"--report r\.txt: choose a name that ends in one of \.csv, \.json"):
        command(Configuration(), report="r.txt")
    folder = tmp_path / "r.csv"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"--report .*r\.csv is a folder: choose another name"):
        command(Configuration(), report=str(folder))


def test_help_tells_what_each_command_is_for(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "--help"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit):
        main({"train": commands.train, "attention": commands.attention})
    said = capsys.readouterr().out
    assert "\n  train       Real tokens per second of training" in said
    assert "\n  attention   Time and memory of one layer" in said


def test_a_table_shows_numbers_as_people_read_them():
    values = (28.8, 7358.4, 0.0432, 1.5e-7, 12, "")
    assert [cell(value) for value in values] == ["28.80", "7,358", "0.0432", "1.5e-07", "12", ""]


TEXT = "the cat sat on a mat while two old trees of that garden were seen in some café by her".split()
SENTENCES = ["the cat sat", "two old trees of that garden", "a mat", "seen by her in some café"]


@pytest.fixture
def trained(tmp_path):
    """A model folder, and a file of sentences."""
    tokenizers = train_tokenizers(SENTENCES, [" ".join(TEXT)], TokenizerConfig(vocab_size=60))
    search = SearchConfig(max_length_ratio=0.0, max_length_extra=9, max_source_tokens=40)
    configuration = Configuration(model=replace(CONFIG, d_model=32, num_heads=4), search=search)
    torch.manual_seed(1)
    model = build_model(configuration, tokenizers).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2.0  # the larger its weights, the stronger its opinions
    save_model(tmp_path / "model", model, tokenizers, configuration, {})
    (tmp_path / "sentences").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    return str(tmp_path / "model"), str(tmp_path / "sentences")


def test_engines_race_on_the_same_sentences_and_in_32_bits_say_the_same(trained, tmp_path, capsys, monkeypatch):
    pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # no further processes
    (model, file), report = trained, tmp_path / "r.json"
    engines = ["ours-bf16", "ours-32", "huggingface", "ctranslate2-float32"]
    commands.decode([model], file, file, 1, engines, rounds=1, batch_one_sentences=2, report=str(report))
    written = json.loads(report.read_text("utf-8"))
    assert "BLEU nrefs:1|" in written["title"]
    rows = written["rows"]
    assert all(row["engine"] in ("ours-bf16", *engines, "ctranslate2-float32, our batches") for row in rows)
    assert [row["engine"] for row in rows] == sorted(row["engine"] for row in rows)
    for row in rows:
        speeds = [value for name, value in row.items() if name.endswith("per_second")]
        assert len(speeds) == 4 and min(speeds) > 0
        assert row["search_only_sentences_per_second"] > row["sentences_per_second"]
        assert row["equal_lines"] == len(SENTENCES) or row["engine"] == "ours-bf16"
    fastest = max(row["times_ctranslate2-float32"] for row in rows if row["engine"] == "ctranslate2-float32")
    assert fastest == 1 and {row["times_huggingface"] for row in rows if row["engine"] == "huggingface"} == {1}
    assert "of the file's longest in ctranslate2" in capsys.readouterr().out


class Lent:
    """Two devices, each of which turns its sentences round."""

    num_devices = 2

    def map(self, work, parts):
        assert work.func is Translator.translate and [len(part) for part in parts] == [2, 1]
        return ([sentence[::-1] for sentence in part] for part in parts)


def test_processes_share_the_sentences_and_give_them_back_in_order():
    translations, _ = Processes(Lent(), SearchConfig())(["abc", "a", "ab"])
    assert translations == ["cba", "a", "ba"]


def test_a_race_that_cannot_be_run_is_refused_before_it_begins(trained, monkeypatch):
    model, file = trained
    with pytest.raises(ValueError, match=r"--engines marian: choose among ours-32, .*, ctranslate2-int8"):
        commands.decode([model], file, engines=["marian"])
    with pytest.raises(ValueError, match=r"--engines: name at least one of ours-32, "):
        commands.decode([model], file, engines=[])
    with open(file, "a", encoding="utf-8") as more:
        print("cat " * 50, file=more)
    with pytest.raises(ValueError, match=r"sentences, line 5: \d+ tokens are more than search.max_source_tokens=40: l"):
        commands.decode([model], file, engines=["ours-32", "ours-bf16"])
    open(file, "w").close()
    with pytest.raises(ValueError, match=r"sentences has no sentences"):
        commands.decode([model], file, engines=["ours-32", "ours-bf16"])
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--engines huggingface needs transformers: pip install 'dragoman\[export\]'"):
        commands.decode([model], file, engines=["huggingface"])


def test_precisions_that_training_has_not_are_refused_at_once(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", "train", "--precisions", "32", "fp8"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as stop:
        main({"train": commands.train})
    assert stop.value.code == 2 and "--precisions=fp8: expected some of '32', 'bf16'" in capsys.readouterr().err
