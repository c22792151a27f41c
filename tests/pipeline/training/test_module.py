import math

import pytest
import torch
from pytorch_lightning import Trainer
from pytorch_lightning.plugins.precision import MixedPrecision
from torch.utils.data import DataLoader

from pipeline.data.batching import collate
from pipeline.data.tokenizer import Tokenizers
from pipeline.training.callbacks import AfterUpdate
from pipeline.training.display import Display
from pipeline.training.module import TranslationModule

SENTENCES = [([5, 6, 7, 8, 9, 10, 11], [9, 8, 7, 6, 5, 4, 10, 11, 12])] * 2 + [([4 + i], [5 + i]) for i in range(6)]


class Words:
    """A tokenizer as far as a model needs one."""

    vocab_size = 20
    fingerprint = "words"

    def save(self, path):
        path.write_bytes(b"words")


@pytest.fixture
def module(tiny):
    words = Words()

    def build(precision: str = "32", **options) -> TranslationModule:
        options = dict(tied_embeddings="target", dropout=0.0) | options
        # A large eps makes Adam's update proportional to the gradient, instead of to its sign.
        optimizer = dict(warmup_steps=1, learning_rate=10.0, eps=1.0, clip_norm=0.0)
        configuration = tiny(model=options, optimizer=optimizer, precision=precision)
        return TranslationModule(configuration, Tokenizers(words, words))

    return build


def build_trainer(**options) -> Trainer:
    """One that passes over the batches once."""
    options |= dict(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False)
    return Trainer(**options, enable_progress_bar=False, enable_model_summary=False)


def trained(module, batches, accumulate):
    """The module after one pass over the batches."""
    build_trainer(accumulate_grad_batches=accumulate).fit(module, DataLoader(batches, batch_size=None))
    return module


def scaling(by: float) -> MixedPrecision:
    """16 bits, with a loss that is multiplied by so much until its gradient overflows."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", by, backoff_factor=2.0**-126))


def assert_same_weights(found, expected):
    torch.testing.assert_close(dict(found.model.named_parameters()), dict(expected.model.named_parameters()))


def in_batches(sentences, size, update_tokens):
    return [collate(sentences[i : i + size], update_tokens) for i in range(0, len(sentences), size)]


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_accumulated_batches_train_like_one(module, accumulate):
    tokens = sum(len(target) + 1 for _, target in SENTENCES)
    one = trained(module(), in_batches(SENTENCES, 8, tokens), accumulate=1)
    many = trained(module(), in_batches(SENTENCES, 8 // accumulate, tokens), accumulate)
    assert one.global_step == many.global_step == 1
    assert float(one.totals["gradient_norm"]) == pytest.approx(float(many.totals["gradient_norm"]), rel=1e-5)
    assert float(one.totals["loss"]) == pytest.approx(float(many.totals["loss"]), rel=1e-6)
    assert_same_weights(many, one)


def test_the_last_update_of_an_epoch_is_normalised_by_its_own_tokens(module):
    """Three batches, two to an update: the third makes an update alone."""
    first, last = SENTENCES[:4], SENTENCES[4:6]
    together = in_batches(first, 2, sum(len(t) + 1 for _, t in first))
    alone = in_batches(last, 2, sum(len(t) + 1 for _, t in last))
    expected = trained(module(), [collate(first, together[0].update_tokens), *alone], accumulate=1)
    found = trained(module(), together + alone, accumulate=2)
    assert_same_weights(found, expected)


def test_the_validation_loss_does_not_depend_on_batches(module):
    module = module().double().eval()

    def loss(size):
        smoothed, plain, tokens = sum(module.validation_sums(batch) for batch in in_batches(SENTENCES, size, 1.0))
        assert tokens == sum(len(target) + 1 for _, target in SENTENCES)
        return [smoothed.item() / tokens.item(), plain.item() / tokens.item()]

    for size in (1, 3):
        assert loss(size) == pytest.approx(loss(8), rel=1e-12)


def test_a_model_that_knows_nothing_costs_the_logarithm_of_the_vocabulary(module):
    module = module().double().eval()
    torch.nn.init.zeros_(module.model.output_weight)
    smoothed, plain, tokens = module.validation_sums(collate(SENTENCES, 1.0))
    assert plain.item() / tokens.item() == pytest.approx(math.log(20), rel=1e-12)
    assert smoothed.item() / tokens.item() == pytest.approx(math.log(20), rel=1e-12)


def test_dropout_depends_on_seed_epoch_and_batch_only(module):
    batch = collate(SENTENCES, 30.0)

    def loss(module, batch_idx):
        module.on_train_batch_start(batch, batch_idx)
        return module.loss_sums(batch)[0].item()

    module = module(dropout=0.5)
    first = loss(module, 0)
    torch.rand(7)
    assert loss(module, 0) == first
    assert loss(module, 1) != first


def test_an_update_that_overflows_16_bits_is_none_but_its_batches_are_behind(module):
    """Scaled far too much at first, the loss overflows, and its update is skipped."""
    module = module(precision="16")
    trainer = build_trainer(plugins=[scaling(by=2.0**126)])
    trainer.fit(module, DataLoader(in_batches(SENTENCES, 4, 20.0), batch_size=None))
    (steps,) = {int(state["step"]) for state in trainer.optimizers[0].state.values()}
    assert steps == module.totals["updates"] == 1
    assert module.global_step == 2
    assert 0 < float(module.totals["gradient_norm"]) < 1e3


def test_a_gradient_that_overflows_16_bits_however_small_the_loss_is_made_ends_the_run(module):
    module = module(precision="16")
    module.trainer = build_trainer(plugins=[scaling(by=2.0**-20)])
    with pytest.raises(ValueError, match="loss or gradient is not finite any more before update 0"):
        AfterUpdate(module, None, Display(speaks=False)).totals()
