"""What other versions wrote, of torch, of Lightning and of this program, is loaded as it was or refused in one line."""

import pytest
import torch
import yaml

from pipeline.checkpoint import DamagedCheckpoint, build_model, load_model, save_model
from pipeline.config import TokenizerConfig
from pipeline.data.tokenizer import Tokenizers, train_tokenizers
from tests.pipeline.test_checkpoint import CONFIGURATION, logits, write_checkpoint


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return train_tokenizers(["ab ba", "abba"], ["xy yx", "yxxy"], TokenizerConfig(vocab_size=12))


@pytest.fixture
def model(tokenizers):
    torch.manual_seed(1)
    return build_model(CONFIGURATION, tokenizers).eval()


@pytest.fixture(params=["a checkpoint", "a model folder"])
def with_options(request, tmp_path, model, tokenizers):
    """``with_options(change)`` writes the model with options that ``change`` has changed, and loads it."""

    def with_options(change):
        if request.param == "a model folder":
            path = tmp_path / "model"
            save_model(path, model, tokenizers, CONFIGURATION, {})
            options = yaml.safe_load((path / "config.yaml").read_text("utf-8"))
            change(options)
            (path / "config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
        else:
            path = write_checkpoint(tmp_path / "step-0000005.ckpt", model, tokenizers)
            content = torch.load(path, weights_only=True)
            files = content["dragoman"]["files"]
            options = yaml.safe_load(files["config.yaml"])
            change(options)
            files["config.yaml"] = yaml.safe_dump(options).encode()
            torch.save(content, path)
        return load_model(path)

    return with_options


def test_options_that_came_later_have_their_defaults(with_options, model):
    def of_a_time_before(options):
        del options["preparation"], options["model"]["num_key_value_heads"], options["search"]["coverage_penalty"]

    loaded = with_options(of_a_time_before)
    assert loaded.configuration == CONFIGURATION
    assert torch.equal(logits(loaded.model), logits(model))


def test_options_that_are_not_known_are_named(with_options):
    """They may change what the model computes."""
    with pytest.raises(ValueError, match=r"config\.yaml: unknown option model\.mixture_of_experts") as refused:
        with_options(lambda options: options["model"].update(mixture_of_experts=8))
    assert "\n" not in str(refused.value)


def test_what_else_a_checkpoint_holds_does_not_matter(tmp_path, model, tokenizers):
    more = {"pytorch-lightning_version": "99.0", "loops": None, "of_the_future": [{"a": 1.0}, torch.ones(2)]}
    loaded = load_model(write_checkpoint(tmp_path / "step-0000005.ckpt", model, tokenizers, **more))
    assert torch.equal(logits(loaded.model), logits(model))


def test_torchs_old_format_is_refused(tmp_path, model, tokenizers):
    path = write_checkpoint(tmp_path / "step-0000005.ckpt", model, tokenizers)
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)
    with pytest.raises(
        DamagedCheckpoint, match=r"5\.ckpt: the checkpoint is damaged .*or the file is none: use"
    ) as told:
        load_model(path)
    assert "\n" not in str(told.value)
