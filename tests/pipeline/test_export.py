"""An export is whole, loads from its folder alone, and is the same model, or it does not appear."""

import json
import os
import re
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from models.config import ModelConfig
from models.search import Hypothesis
from pipeline.checkpoint import build_model, load_model, save_model
from pipeline.config import Configuration, SearchConfig, TokenizerConfig
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference import export_ctranslate2, export_huggingface, export_safetensors
from pipeline.inference.agreement import Agreement, num_parted
from pipeline.inference.ctranslate2_engine import load
from pipeline.inference.engine import Source
from pipeline.inference.export import BYTES, check_size, check_translations, export
from pipeline.inference.translator import Translator

ROOT = Path(__file__).parents[2]
WORDS = "the cat sat on a mat while two old trees of that garden were seen in some café by her".split()
TEXT = [" ".join(WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
TOKENIZERS = train_tokenizers(TEXT, TEXT, TokenizerConfig(vocab_size=64))
SENTENCES = ["the cat sat", "two old trees of that garden", "a mat", "seen by her in some café"]


SEARCH = SearchConfig(beam_size=2, max_length_ratio=0.0, max_length_extra=11)


def saved(folder, search=SEARCH, scale=2.0, **model):
    """A model folder with an untrained model; the larger its weights, the stronger its opinions."""
    sizes = dict(encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64, num_heads=4)
    configuration = Configuration(model=ModelConfig(**sizes | model), search=search)
    torch.manual_seed(1)
    model = build_model(configuration, TOKENIZERS).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= scale
    save_model(folder, model, TOKENIZERS, configuration, {})
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("trained") / "model")


def own(folder):
    model, tokenizers, configuration, _ = load_model(folder)
    return Translator.of(model, tokenizers, configuration)


def test_an_export_is_a_folder_of_its_own_beside_the_model_and_translates_without_options(model_folder):
    folder = export(model_folder, "ctranslate2")
    assert folder == model_folder / "ctranslate2-float32"
    assert json.loads((folder / "export.json").read_text()) == {"format": "ctranslate2", "quantization": "float32"}
    greedy = replace(own(model_folder).search, beam_size=1)
    assert Translator(*load(folder)).translate(SENTENCES, greedy) == own(model_folder).translate(SENTENCES, greedy)
    assert Translator(*load(folder)).search == own(model_folder).search


def test_settings_that_go_with_an_export_can_be_changed(model_folder, tmp_path):
    folder = export(model_folder, "ctranslate2", output=tmp_path / "x", search={"max_source_tokens": 1100})
    _, _, configuration = load(folder)
    assert configuration.search == replace(own(model_folder).search, max_source_tokens=1100)


def test_plain_weights_load_as_a_model_and_are_described(model_folder, tmp_path):
    folder = export(model_folder, "safetensors", output=tmp_path / "x")
    assert own(folder).translate(SENTENCES) == own(model_folder).translate(SENTENCES)
    weights = safetensors.torch.load_file(folder / "weights.safetensors")
    described = (folder / "README.md").read_text()
    for name, weight in weights.items():
        assert f"`{name}`" in described and " × ".join(map(str, weight.shape)) in described
    assert "`output_embedding.weight` = `source_embedding.weight` = `target_embedding.weight` | 64 × 32" in described
    settings = json.loads((folder / "config.json").read_text())
    assert settings["model"]["d_model"] == 32 and settings["special_ids"]["</s>"] == 3
    assert settings["vocabulary"] == {"source": 64, "target": 64} and settings["unicode_form"] == "NFC"


@pytest.mark.parametrize(("format", "quantization"), [("huggingface", "float16"), ("safetensors", "bfloat16")])
def test_weights_are_stored_in_16_bits(tmp_path, format, quantization):
    folder = export(saved(tmp_path / "model", scale=1.0), format, quantization)
    (file,) = folder.glob("*.safetensors")
    weights = safetensors.torch.load_file(file)
    assert {weight.dtype for weight in weights.values()} == {getattr(torch, quantization)}


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """In which matrices outweigh all else; rotary positions need no table."""
    folder = tmp_path_factory.mktemp("larger") / "model"
    return saved(folder, d_model=256, d_ff=1024, positions="rotary", tied_embeddings="all")


@pytest.mark.parametrize("quantization", BYTES)
def test_a_file_is_as_large_as_its_weights(larger, tmp_path, quantization):
    model, tokenizers, configuration, _ = load_model(larger)
    folder = tmp_path / "x"
    folder.mkdir()
    export_ctranslate2.write(model, tokenizers, configuration, quantization, folder)
    expected = BYTES[quantization] * sum(parameter.numel() for parameter in model.parameters())  # tied ones once
    assert (folder / "model.bin").stat().st_size == pytest.approx(expected, rel=0.1)
    check_size(folder, model, quantization)
    content = (folder / "model.bin").read_bytes()
    (folder / "model.bin").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(ValueError, match=rf"bytes, which cannot be \d+ weights in {quantization}"):
        check_size(folder, model, quantization)


def test_tied_embeddings_are_written_once(tmp_path):
    sizes = {}
    for tied in ("all", "target", "none"):
        folder = export(saved(tmp_path / tied, tied_embeddings=tied), "ctranslate2")
        sizes[tied] = (folder / "model.bin").stat().st_size
    table = 4 * 64 * 32
    assert sizes["target"] - sizes["all"] == pytest.approx(table, abs=100)  # names and shapes
    assert sizes["none"] - sizes["target"] == pytest.approx(table, abs=100)


@pytest.mark.parametrize(
    ("writer", "quantization"),
    [(export_ctranslate2, "int8"), (export_huggingface, "float16"), (export_safetensors, "float16")],
)
def test_writing_leaves_the_model_as_it_is(model_folder, tmp_path, writer, quantization):
    """CTranslate2 rounds weights where they lie."""
    model, tokenizers, configuration, _ = load_model(model_folder)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    writer.write(model, tokenizers, configuration, quantization, tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(
    ("format", "model", "message"),
    [
        ("ctranslate2", dict(architecture="recurrent"), "model.architecture=recurrent is nothing CTranslate2 can run"),
        ("ctranslate2", dict(attention="performer"), "model.attention=performer is nothing CTranslate2 can run"),
        ("ctranslate2", dict(attention_window=4), "model.attention_window=4 is nothing CTranslate2 can run"),
        ("huggingface", dict(architecture="recurrent"), "model.architecture=recurrent is in no translation model"),
        ("huggingface", dict(attention="additive"), "model.attention=additive is in no translation model"),
        ("huggingface", dict(attention_window=4), "model.attention_window=4 is in no translation model"),
        ("huggingface", dict(num_key_value_heads=2), "model.num_key_value_heads=2 is in no translation model"),
        ("huggingface", dict(norm="rms"), "model.norm=rms is in no translation model"),
        ("huggingface", dict(activation="swiglu"), "model.activation=swiglu .* there it can be relu or gelu"),
        ("huggingface", dict(positions="rotary"), "model.positions=rotary .* there it can be sinusoidal or learned"),
        (
            "huggingface",
            dict(positions="learned", norm_order="post"),
            "model.positions=learned .* with model.norm_order=post: there it can be sinusoidal",
        ),
    ],
)
def test_what_a_format_has_not_is_refused_before_anything_is_written(format, model, message, tmp_path):
    folder = saved(tmp_path / "model", **model)
    with pytest.raises(ValueError, match=message):
        export(folder, format)
    assert not list(folder.glob(f"*{format}*"))


def test_every_model_and_every_search_has_plain_weights(tmp_path):
    search = replace(SEARCH, coverage_penalty=0.5, banned=["cat"], length_normalisation="gnmt")
    saved(tmp_path / "model", search, architecture="recurrent", attention="additive")
    folder = export(tmp_path / "model", "safetensors", lines=SENTENCES)
    assert own(folder).translate(SENTENCES) == own(tmp_path / "model").translate(SENTENCES)


def test_mistakes_are_named(model_folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="--quantization=int8 is nothing that --format=huggingface has: choose one of"):
        export(model_folder, "huggingface", "int8")
    with pytest.raises(ValueError, match=r"--output=.* is there, and is no export: name another folder"):
        export(model_folder, "ctranslate2", output=model_folder)
    with pytest.raises(ValueError, match=r"search.min_length=3 is not done by ctranslate2 .* set search.min_length=0"):
        export(model_folder, "ctranslate2", output=tmp_path / "x", search={"min_length": 3})
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "pipeline.inference.ctranslate2_engine", raising=False)
    with pytest.raises(ValueError, match=r"--format=ctranslate2 needs ctranslate2: pip install 'dragoman\[export\]'"):
        export(model_folder, "ctranslate2", output=tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_what_would_not_be_verified_is_refused(model_folder, tmp_path):
    command = runpy.run_path(str(ROOT / "scripts/export.py"))["export"]
    for name, text in (("empty", ""), ("one", "a\n"), ("two", "a\nb\n")):
        (tmp_path / name).write_text(text)
    empty, one, two = (str(tmp_path / name) for name in ("empty", "one", "two"))
    for options, message in (
        ({"verify": empty}, "--verify=.*empty has no sentences: name another file"),
        ({"reference": one}, "--reference is of the sentences of --verify: give both, or neither"),
        ({"verify": one, "reference": two}, "one has 1 lines and .*two 2: they must be as many"),
    ):
        with pytest.raises(ValueError, match=message):
            command(str(model_folder), "ctranslate2", output=str(tmp_path / "x"), **options)


def forget_the_end_of_the_source(spec):
    spec.config.add_source_eos = False


def forget_what_is_forbidden(spec):
    spec.decoder.projection.bias[:] = 0


def forget_the_scale_of_embeddings(spec):
    spec.encoder.scale_embeddings = False


def exchange_two_norms(spec):
    layer = spec.decoder.layer[0]
    layer.ffn.layer_norm, layer.attention.layer_norm = layer.attention.layer_norm, layer.ffn.layer_norm


def shift_positions(spec):
    encodings = spec.decoder.position_encodings.encodings
    spec.decoder.position_encodings.encodings = encodings.roll(1, 0)


def lose_a_matrix(spec):
    spec.decoder.layer[0].ffn.linear_1.weight[:] = 0


@pytest.mark.parametrize(
    ("fault", "quantization"),
    [
        (forget_the_end_of_the_source, "float32"),
        (forget_what_is_forbidden, "float32"),
        (forget_the_scale_of_embeddings, "float32"),
        (exchange_two_norms, "float32"),
        (shift_positions, "float32"),
        (shift_positions, "int8"),
        (lose_a_matrix, "float32"),
    ],
)
def test_an_export_that_is_another_model_does_not_appear(tmp_path, monkeypatch, fault, quantization):
    folder = saved(tmp_path / "model", scale=1.5)
    model, tokenizers, configuration, _ = load_model(folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += torch.randn_like(parameter)  # two norms that differ
    save_model(folder, model, tokenizers, configuration, {})
    right = export_ctranslate2.described

    def wrong(*arguments):
        spec = right(*arguments)
        fault(spec)
        return spec

    monkeypatch.setattr(export_ctranslate2, "described", wrong)
    with pytest.raises(ValueError, match="not the same model, and nothing was written"):
        export(folder, "ctranslate2", quantization, tmp_path / "wrong")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_export_leaves_the_former_one(model_folder, tmp_path, monkeypatch):
    folder = export(model_folder, "ctranslate2", output=tmp_path / "x")
    before = (folder / "model.bin").read_bytes()
    monkeypatch.setattr(export_ctranslate2, "described", None)
    with pytest.raises(TypeError):
        export(model_folder, "ctranslate2", output=tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"] and (folder / "model.bin").read_bytes() == before


SAME = Agreement(
    beam_size=1,
    lines=100,
    equal=100,
    parted=0,
    mean_error=1e-7,
    greatest_error=1e-6,
    chrf=100.0,
    bleu=(),
    seconds=(1.0, 1.0),
)


def test_a_beam_that_ends_too_early_is_told_of():
    with pytest.warns(UserWarning, match="with a beam of 5 the engine translates 2 of 100 lines in another way"):
        check_translations([SAME, SAME._replace(beam_size=5, equal=98, chrf=99.5)], "float32")


@pytest.mark.filterwarnings("error")
def test_rounding_is_allowed_for_and_no_more():
    check_translations([SAME], "float32")
    check_translations([SAME._replace(equal=99)], "float32")  # a tie
    check_translations([SAME, SAME._replace(beam_size=5, equal=99, chrf=99.9)], "float32")
    check_translations([SAME._replace(equal=90, mean_error=0.05, greatest_error=0.4, chrf=91.0)], "int8")
    for difference, quantization, message in (
        (dict(equal=99, parted=1), "float32", "translates 1 of 100 lines in another way"),
        (dict(greatest_error=2e-3), "float32", "off by 0.002, more than the 0.001 of float32"),
        (dict(mean_error=0.3), "int8_float16", "off by 0.3, more than the 0.2 of int8_float16"),
        (dict(mean_error=float("nan")), "int8", "off by nan"),
        (dict(chrf=89.0), "int8", r"translations in int8 have chrF 89.0 against the model's own, less than 90.0"),
        (dict(chrf=96.0), "float16", "chrF 96.0"),
    ):
        with pytest.raises(ValueError, match=message):
            check_translations([SAME._replace(**difference)], quantization)


def test_translations_part_where_the_model_prefers_one_of_two_tokens(model_folder):
    model = load_model(model_folder).model
    with torch.no_grad():
        model.output_embedding.weight[9] = model.output_embedding.weight[8]  # always equally probable
    source, beginning = Source((5, 6, 7)), [10, 11]
    first, tied, other, shorter = (
        Hypothesis(ids, 0.0, True) for ids in ([*beginning, 8, 4], [*beginning, 9], [*beginning, 12, 4], beginning)
    )
    assert num_parted(model, [source] * 4, [first] * 4, [first, tied, other, shorter]) == 2


def offline(code, *arguments):
    """A fresh process that has no network and does not know this repository."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


IN_TRANSFORMERS = """
import json, sys, tempfile
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

def look(folder, sentences, copy):
    model, loading = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(sentences, return_tensors="pt", padding=True)
    outputs = model.generate(**inputs, num_beams=1, early_stopping=False)
    settings = model.generation_config
    model.save_pretrained(copy)
    tokenizer.save_pretrained(copy)
    return {
        "problems": [list(loading[kind]) for kind in ("missing_keys", "unexpected_keys")],
        "ids": tokenizer(sentences)["input_ids"],
        "text": tokenizer.batch_decode(outputs, skip_special_tokens=True),
        "outputs": outputs.tolist(),
        "settings": [settings.decoder_start_token_id, settings.eos_token_id, settings.pad_token_id,
                     settings.max_length, settings.num_beams, settings.length_penalty, settings.bad_words_ids],
    }

folders, sentences = json.loads(sys.argv[1])
results = []
for folder in folders:
    copy, last = tempfile.mkdtemp(), tempfile.mkdtemp()
    results.append([look(folder, sentences, copy), look(copy, sentences, last)])
print(json.dumps(results))
"""


def test_transformers_loads_an_export_alone_offline_and_saves_it_again(tmp_path):
    folders = [saved(tmp_path / norm_order, norm_order=norm_order) for norm_order in ("pre", "post")]
    sentences = [*SENTENCES, "a </s> <s> sign"]
    exports = [str(export(folder, "huggingface")) for folder in folders]
    results = offline(IN_TRANSFORMERS, json.dumps([exports, sentences]))
    for folder, (first, again) in zip(folders, results, strict=True):
        assert first == again
        assert first["problems"] == [[], []]
        assert first["ids"] == [[*ids, 3] for ids in TOKENIZERS.source.encode(sentences)]
        assert first["text"] == own(folder).translate(sentences, replace(SEARCH, beam_size=1))
        assert all(row[0] == 2 and 1 not in row for row in first["outputs"])
        assert first["settings"] == [2, 3, 0, 12, 2, 1.0, [[0], [1], [2]]]


IN_CTRANSLATE2 = """
import json, sys
import ctranslate2, sentencepiece
folder, *sentences = sys.argv[1:]
tokenizer = sentencepiece.SentencePieceProcessor(f"{folder}/tokenizer.model")
translator = ctranslate2.Translator(folder)
pieces = tokenizer.encode(sentences, out_type=str)
results = translator.translate_batch(pieces, beam_size=1, max_decoding_length=11, min_decoding_length=0)
print(json.dumps([tokenizer.decode(result.hypotheses[0]) for result in results]))
"""


def test_a_line_that_is_too_long_is_named_with_its_file(model_folder, tmp_path):
    command, source = runpy.run_path(str(ROOT / "scripts/export.py"))["export"], tmp_path / "source"
    source.write_text("\nthe cat sat\n")
    options = {"output": str(tmp_path / "x"), "verify": str(source), "search": {"max_source_tokens": 1}}
    with pytest.warns(UserWarning, match=r"/source, line 2 has \d+ source tokens, more than search.max_source_tok"):
        command(str(model_folder), "safetensors", **options)


def test_a_plain_call_of_ctranslate2_needs_no_guessing(tmp_path):
    folder = saved(tmp_path / "model", replace(SEARCH, beam_size=1))
    assert offline(IN_CTRANSLATE2, export(folder, "ctranslate2"), *SENTENCES) == own(folder).translate(SENTENCES)


def test_the_script_shows_how_far_model_and_export_agree(model_folder, tmp_path):
    for name in ("source", "reference"):
        (tmp_path / name).write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/export.py", "--model", model_folder, "--format", "ctranslate2", "--output",
         tmp_path / "x", "--verify", tmp_path / "source", "--reference", tmp_path / "reference"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"\n +1 +4 of 4 .* 100\.00 +(\d+\.\d\d), \1 ", done.stdout)
    assert done.stdout.endswith(f"{tmp_path / 'x'}\n")
