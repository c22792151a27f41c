import dataclasses
import json
import os
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from models.config import ModelConfig
from models.recurrent import RecurrentModel
from pipeline.checkpoint import (
    FORMAT,
    DamagedCheckpoint,
    average_checkpoints,
    average_states,
    build_model,
    checkpoint_path,
    checkpoints,
    fingerprint,
    load_model,
    portable_files,
    read_checkpoint,
    remove_unfinished,
    save_model,
    written_whole,
)
from pipeline.config import Configuration, TokenizerConfig
from pipeline.data.tokenizer import Tokenizers, train_tokenizers

CONFIGURATION = Configuration(
    model=ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=8, num_heads=2, dropout=0.0)
)


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return train_tokenizers(["ab ba", "abba"], ["xy yx", "yxxy"], TokenizerConfig(vocab_size=12))


@pytest.fixture(scope="module")
def others() -> Tokenizers:
    return train_tokenizers(["ab ba", "bbaa"], ["xy yx", "yyxx"], TokenizerConfig(vocab_size=12))


@pytest.fixture
def model(tokenizers):
    torch.manual_seed(1)
    return build_model(CONFIGURATION, tokenizers).eval()


def write_checkpoint(path, model, tokenizers, configuration=CONFIGURATION, **more):
    passport = {
        "format": FORMAT,
        "files": portable_files(tokenizers, configuration),
        "tokenizers": fingerprint(tokenizers),
    }
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": state, "global_step": 5, "dragoman": passport} | more, path)
    return path


def logits(model):
    return model(torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6]]))


# The model folder


def test_a_model_folder_gives_the_same_model_back(tmp_path, model, tokenizers):
    save_model(tmp_path / "run" / "model", model, tokenizers, CONFIGURATION, {"steps": [5]})
    for path in (tmp_path / "run", tmp_path / "run" / "model"):
        loaded = load_model(path)
        assert torch.equal(logits(loaded.model), logits(model))
        assert not loaded.model.training
        assert loaded.model.output_weight is loaded.model.source_embedding.weight
        assert loaded.configuration == CONFIGURATION
        assert fingerprint(loaded.tokenizers) == fingerprint(tokenizers)
        assert loaded.metrics == {"steps": [5]}


@pytest.mark.parametrize("attention", ["dot_product", "additive", "none"])
def test_the_recurrent_architecture_is_built_saved_and_loaded_like_the_other(tmp_path, tokenizers, attention):
    config = replace(CONFIGURATION.model, architecture="recurrent", attention=attention)
    model = build_model(replace(CONFIGURATION, model=config), tokenizers).eval()
    assert isinstance(model, RecurrentModel)
    for lstm in (module for module in model.modules() if isinstance(module, torch.nn.LSTM)):
        # As cuDNN lays them: all weights of an LSTM in one piece of memory.
        weights = list(lstm.parameters(recurse=False))
        memory = torch.cat([weight.detach().flatten() for weight in weights])
        for weight, part in zip(weights, memory.split([weight.numel() for weight in weights]), strict=True):
            weight.data = part.view_as(weight)
    save_model(tmp_path / "model", model, tokenizers, replace(CONFIGURATION, model=config), {})
    loaded = load_model(tmp_path / "model")
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.configuration.model == config
    assert {name: weight.shape for name, weight in loaded.model.state_dict().items()} == {
        name: weight.shape for name, weight in model.state_dict().items()
    }


def test_a_model_folder_replaces_the_one_before_and_leaves_nothing_else(tmp_path, model, tokenizers):
    for steps in (1, 2):
        save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {"steps": steps})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.yaml", "tokenizer.model", "weights.safetensors", "metrics.json"}
    assert json.loads((tmp_path / "model" / "metrics.json").read_text()) == {"steps": 2}


def test_equal_models_are_equal_files(tmp_path, model, tokenizers):
    for number in range(8):
        save_model(tmp_path / f"{number}", model, tokenizers, CONFIGURATION, {})
    files = {(tmp_path / f"{number}" / "weights.safetensors").read_bytes() for number in range(8)}
    assert len(files) == 1 and torch.equal(logits(load_model(tmp_path / "0").model), logits(model))


def test_a_model_that_finds_the_disk_full_says_so(tmp_path, model, tokenizers, monkeypatch):
    def save_file(*_):
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    with pytest.raises(OSError, match=r"weights\.safetensors could not be written .*No space left on device"):
        save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})


def test_a_tokenizer_of_another_model_is_refused_though_its_size_fits(tmp_path, model, tokenizers, others):
    assert tokenizers.source.vocab_size == others.source.vocab_size
    save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})
    others.save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"model: the tokenizer there is not the one .*weights\.safetensors"):
        load_model(tmp_path / "model")


def test_missing_and_misshapen_weights_are_named_and_unknown_ones_reported(tmp_path, model, tokenizers):
    save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})
    file = tmp_path / "model" / "weights.safetensors"
    with safetensors.safe_open(file, framework="pt") as weights:
        metadata = weights.metadata()
    state = safetensors.torch.load_file(file)

    safetensors.torch.save_file(state | {"extra": torch.zeros(1)}, file, metadata)
    with pytest.warns(UserWarning, match="unknown weights are ignored: extra"):
        load_model(tmp_path / "model")
    safetensors.torch.save_file(state | {"encoder_norm.weight": torch.zeros(3)}, file, metadata)
    with pytest.raises(ValueError, match=r"encoder_norm\.weight is \[3\], but its config\.yaml makes it \[8\]"):
        load_model(tmp_path / "model")
    del state["encoder_norm.weight"]
    safetensors.torch.save_file(state, file, metadata)
    with pytest.raises(ValueError, match=r"weights are missing: encoder_norm\.weight"):
        load_model(tmp_path / "model")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match="damaged, or not a safetensors file"):
        load_model(tmp_path / "model")


def test_what_is_no_model_is_said_in_a_line(tmp_path):
    with pytest.raises(ValueError, match="nowhere: no such file or folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="neither a run nor a model folder nor a checkpoint"):
        load_model(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ValueError, match="no model yet; the first appears after its first validation"):
        load_model(tmp_path)
    (tmp_path / "export.json").write_text('{"format": "ctranslate2"}')
    with pytest.raises(ValueError, match="an export, which scripts/translate.py takes with --engine ctranslate2"):
        load_model(tmp_path)
    (tmp_path / "weights.safetensors").write_text("")
    with pytest.raises(ValueError, match="weights alone are no model: name the folder that they are in"):
        load_model(tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="a model without a name: give runs/NAME, and a comma only between two"):
        load_model("")


def test_a_model_without_its_tokenizer_is_told(tmp_path, model, tokenizers):
    save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="model: tokenizer.model is missing: copy it from the run"):
        load_model(tmp_path)


def test_whoever_may_read_one_file_of_a_model_may_read_all(tmp_path, model, tokenizers):
    save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})
    modes = {file.stat().st_mode for file in (tmp_path / "model").iterdir()}
    (tmp_path / "file").touch()
    assert modes == {(tmp_path / "file").stat().st_mode}


# Checkpoints


def test_a_checkpoint_is_complete_wherever_it_is_moved(tmp_path, model, tokenizers):
    loaded = load_model(write_checkpoint(tmp_path / "elsewhere" / "step-0000005.ckpt", model, tokenizers))
    assert torch.equal(logits(loaded.model), logits(model))
    assert loaded.model.output_weight is loaded.model.source_embedding.weight
    assert loaded.configuration == CONFIGURATION
    assert fingerprint(loaded.tokenizers) == fingerprint(tokenizers)


def test_a_model_takes_the_place_of_a_model_and_of_nothing_else(tmp_path, model, tokenizers):
    for _ in range(2):
        save_model(tmp_path / "model", model, tokenizers, CONFIGURATION, {})
    with pytest.raises(ValueError, match="holds something else than a model: name another folder"):
        save_model(tmp_path, model, tokenizers, CONFIGURATION, {})
    assert os.listdir(tmp_path) == ["model"]


def test_a_damaged_checkpoint_is_told_wherever_the_damage_is(tmp_path, model, tokenizers):
    path = write_checkpoint(tmp_path / "step-0000005.ckpt", model, tokenizers)
    whole = path.read_bytes()
    for damaged in (whole[:1000], whole[:-1], b"", b"x" * 100, whole[:5000] + b"\0\xff\0\xff" + whole[5004:]):
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint, match=r"step-0000005\.ckpt: the checkpoint is damaged"):
            read_checkpoint(path)


class Opener:
    def __reduce__(self):
        return os.mkdir, ("opened",)


def test_code_in_a_checkpoint_is_not_run(tmp_path, model, tokenizers, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_checkpoint(tmp_path / "step-0000005.ckpt", model, tokenizers, code=Opener())
    with pytest.raises(ValueError, match="holds Python objects, which are never loaded"):
        load_model(path)
    assert not (tmp_path / "opened").exists()


def test_checkpoints_of_others_and_of_the_future_are_refused(tmp_path, model, tokenizers):
    path = tmp_path / "step-0000005.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="not a checkpoint of this program"):
        load_model(path)
    write_checkpoint(path, model, tokenizers, dragoman={"format": FORMAT + 1})
    with pytest.raises(ValueError, match=rf"written in format {FORMAT + 1}, this program reads up to {FORMAT}"):
        load_model(path)


def test_what_a_checkpoint_carries_is_named_by_the_checkpoint(tmp_path, model, tokenizers):
    files = portable_files(tokenizers, CONFIGURATION)
    newer = files["config.yaml"].replace(b"d_model:", b"d_modell:")
    path = tmp_path / "step-0000005.ckpt"
    for config, complaint in (({"config.yaml": newer}, "unknown option model.d_modell"), ({}, "No such file")):
        small = {name: data for name, data in files.items() if name != "config.yaml"} | config
        passport = {"format": FORMAT, "files": small, "tokenizers": fingerprint(tokenizers)}
        write_checkpoint(path, model, tokenizers, dragoman=passport)
        with pytest.raises(ValueError, match=complaint) as told:
            load_model(path)
        assert f"{path}/config.yaml" in str(told.value)


def test_checkpoints_are_sorted_by_their_updates(tmp_path):
    for step in (10_000_000, 500, 9_999_999):
        checkpoint_path(tmp_path, step).parent.mkdir(exist_ok=True)
        checkpoint_path(tmp_path, step).touch()
    (tmp_path / "checkpoints" / ".step-0000600.ckpt.1.unfinished").touch()
    (tmp_path / "checkpoints" / "step-0000700.damaged").touch()
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, step) for step in (500, 9_999_999, 10_000_000)]


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"), written_whole(path) as new:
        new.write_text("ne")
        raise OSError("disk full")
    assert [p.name for p in tmp_path.iterdir()] == ["file"] and path.read_text() == "old"
    with written_whole(path) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".model.7.unfinished").mkdir()
    (tmp_path / ".model.7.unfinished" / "weights.safetensors").touch()
    (tmp_path / ".step-0000007.ckpt.7.unfinished").touch()
    (tmp_path / "step-0000007.ckpt").touch()
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000007.ckpt"]


# The average


def states():
    for step, values in ((10, [1.0, 2.0]), (20, [3.0, 4.0]), (30, [5.0, 9.0])):
        table = torch.tensor(values)
        half = torch.tensor([60000.0], dtype=torch.float16)
        yield {"embedding": table, "output": table, "half": half, "steps": torch.tensor(step)}


def test_an_average_is_taken_in_high_precision_once_per_tensor_and_leaves_integers_alone():
    inputs = list(states())
    average = average_states(inputs)
    assert average["embedding"].tolist() == [3.0, 5.0]
    assert average["output"] is average["embedding"]
    assert average["half"].tolist() == [60000.0] and average["half"].dtype == torch.float16  # their sum is infinite
    assert average["steps"] == 30
    for state, fresh in zip(inputs, states(), strict=True):
        assert all(torch.equal(state[name], fresh[name]) for name in fresh)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_average_of_equal_states_is_that_state_bit_for_bit(count):
    state = {"weight": torch.randn(1000, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(average_states([state] * count)["weight"], state["weight"])


def test_the_order_of_the_states_does_not_matter():
    inputs = [{"weight": torch.randn(100, generator=torch.Generator().manual_seed(i))} for i in range(5)]
    torch.testing.assert_close(average_states(inputs), average_states(inputs[::-1]), rtol=1e-6, atol=1e-7)


def test_what_does_not_belong_together_is_not_averaged(tmp_path, model, tokenizers, others):
    with pytest.raises(ValueError, match=r"different entries cannot be averaged: \['b'\]"):
        average_states([{"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}])
    with pytest.raises(ValueError, match="nothing to average"):
        average_states([])
    one = write_checkpoint(tmp_path / "step-0000001.ckpt", model, tokenizers)
    other = write_checkpoint(tmp_path / "step-0000002.ckpt", model, others)
    with pytest.raises(ValueError, match=r"step-0000001\.ckpt and .*step-0000002\.ckpt have different tokenizers"):
        average_checkpoints([one, other])
    rotary = dataclasses.replace(CONFIGURATION, model=dataclasses.replace(CONFIGURATION.model, positions="rotary"))
    other = write_checkpoint(tmp_path / "step-0000003.ckpt", model, tokenizers, rotary)
    with pytest.raises(ValueError, match=r"step-0000001\.ckpt and .*step-0000003\.ckpt are different models"):
        average_checkpoints([one, other])


def test_averaged_checkpoints_make_a_model(tmp_path, model, tokenizers):
    paths = []
    for step in (1, 2):
        with torch.no_grad():
            model.output_weight.fill_(step)
        paths.append(write_checkpoint(tmp_path / f"step-000000{step}.ckpt", model, tokenizers))
    average = average_checkpoints(paths)
    assert torch.all(average.model.output_weight == 1.5)
    assert average.metrics == {"average_of_steps": [1, 2]}
