"""Several models as one: the two rules by worked numbers, and what an ensemble may not depend on."""

import math

import pytest
import torch

from models.config import ModelConfig
from models.ensemble import Ensemble, EnsembleState
from models.search import beam_search
from models.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2
SPECIAL = {"bos_id": BOS, "eos_id": EOS, "forbidden_ids": (PAD, BOS)}


class Nothing:
    """The state of a step that remembers nothing."""

    def select(self, rows):
        return self


def constant(*probabilities):
    logits = torch.tensor([probabilities]).log()
    return lambda ids, state: (logits.repeat(len(ids), 1), state)


def combined(*steps, **options):
    """The probabilities of the next token."""
    state = EnsembleState(tuple(Nothing() for _ in steps))
    log_probs, _ = Ensemble(steps, **options).step(torch.tensor([[BOS], [BOS]]), state)
    assert (log_probs[0] == log_probs[1]).all()
    return log_probs[0].exp().tolist()


ONE, OTHER = constant(0.7, 0.3, 0.0), constant(0.1, 0.5, 0.4)


def test_the_mean_of_probabilities_keeps_what_one_model_thinks_possible():
    assert combined(ONE, OTHER) == pytest.approx([0.4, 0.4, 0.2])
    assert combined(ONE, OTHER, rule="probability") == combined(ONE, OTHER)


def test_the_mean_of_log_probabilities_needs_the_consent_of_all():
    assert combined(ONE, OTHER, rule="log_probability") == pytest.approx([0.4059, 0.5941, 0.0], abs=5e-5)


def test_weights_say_how_much_each_counts():
    assert combined(ONE, OTHER, weights=[3.0, 1.0]) == pytest.approx([0.55, 0.35, 0.1])
    assert combined(ONE, OTHER, weights=[0.75, 0.25]) == pytest.approx(combined(ONE, OTHER, weights=[3.0, 1.0]))
    product = [0.7**0.75 * 0.1**0.25, 0.3**0.75 * 0.5**0.25, 0.0]
    expected = [p / sum(product) for p in product]
    assert combined(ONE, OTHER, weights=[3.0, 1.0], rule="log_probability") == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_twice_the_weight_is_the_same_model_twice(rule):
    assert combined(ONE, ONE, OTHER, rule=rule) == pytest.approx(combined(ONE, OTHER, weights=[2.0, 1.0], rule=rule))


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_the_order_of_models_does_not_matter(rule):
    third = constant(0.2, 0.2, 0.6)
    expected = combined(ONE, OTHER, third, rule=rule, weights=[1.0, 2.0, 3.0])
    assert combined(third, ONE, OTHER, rule=rule, weights=[3.0, 1.0, 2.0]) == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_logits_that_differ_by_a_constant_count_as_the_same_model(rule):
    def shifted(ids, state):
        logits, state = ONE(ids, state)
        return logits + 7.0, state

    assert combined(shifted, OTHER, rule=rule) == pytest.approx(combined(ONE, OTHER, rule=rule))


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_forbidden_tokens_are_removed_before_each_models_softmax(rule):
    """A model that would put nearly all on padding has as much to say about the rest as the other."""
    wasteful = constant(0.98, 0.01, 0.01)
    assert combined(wasteful, constant(0.0, 0.5, 0.5), rule=rule, forbidden_ids=[0]) == pytest.approx([0, 0.5, 0.5])


def test_half_precision_is_combined_in_float32():
    logits = torch.randn(2, 5, dtype=torch.bfloat16)
    ensemble = Ensemble([lambda ids, state: (logits, state)] * 2)
    log_probs, _ = ensemble.step(torch.tensor([[BOS], [BOS]]), EnsembleState((Nothing(), Nothing())))
    torch.testing.assert_close(log_probs, logits.float().log_softmax(-1))


def models_and_sources(num_models):
    models = []
    for seed in range(num_models):
        torch.manual_seed(seed)
        config = ModelConfig(encoder_layers=1, decoder_layers=1 + seed, d_model=16, d_ff=32, num_heads=2)
        models.append(Transformer(config, 12, 12, pad_id=PAD).double().eval())
    torch.manual_seed(7)
    lengths = torch.arange(8) % 4 + 2
    return models, torch.randint(3, 12, (8, 5)).masked_fill(torch.arange(5) >= lengths[:, None], PAD)


def search(models, source, **options):
    ensemble = Ensemble([model.step for model in models], forbidden_ids=(PAD, BOS), **options)
    state = EnsembleState(tuple(model.start(model.encode(source)) for model in models))
    return beam_search(ensemble.step, state, torch.full((len(source),), 10), beam_size=3, num_hypotheses=3, **SPECIAL)


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_a_model_with_itself_translates_as_it_does_alone(rule):
    [model], source = models_and_sources(1)
    alone = beam_search(
        model.step, model.start(model.encode(source)), torch.full((8,), 10), beam_size=3, num_hypotheses=3, **SPECIAL
    )
    for models in ([model], [model] * 2, [model] * 3):
        for found, expected in zip(search(models, source, rule=rule), alone, strict=True):
            assert [h.ids for h in found] == [h.ids for h in expected]
            assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-5)


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_two_models_of_different_size_translate_alike_in_both_orders(rule):
    models, source = models_and_sources(2)
    forwards, backwards = search(models, source, rule=rule), search(models[::-1], source, rule=rule)
    assert [[h.ids for h in row] for row in forwards] == [[h.ids for h in row] for row in backwards]
    assert [[h.score for h in row] for row in forwards] == [pytest.approx([h.score for h in row]) for row in backwards]
    assert forwards != search(models[:1], source, rule=rule)


def test_a_score_is_the_combined_log_probability():
    """Forced decoding by hand: every model reads the whole target."""
    models, source = models_and_sources(2)
    for row, [best, *_] in zip(source, search(models, source), strict=True):
        target = torch.tensor([[BOS, *best.ids] + [EOS] * best.finished])
        total = 0.0
        for position in range(1, target.size(1)):
            logits = [model(row[None], target[:, :position])[0, -1] for model in models]
            probabilities = [each[EOS:].softmax(-1)[target[0, position] - EOS].item() for each in logits]
            total += math.log(sum(probabilities) / 2)
        assert best.score == pytest.approx(total, rel=1e-5)


def test_wrong_weights_are_refused():
    with pytest.raises(ValueError, match="1 weights for an ensemble of 2 models"):
        Ensemble([ONE, OTHER], weights=[1.0])
    with pytest.raises(ValueError, match=r"weights=\[1.0, 0.0\] must be more than 0"):
        Ensemble([ONE, OTHER], weights=[1.0, 0.0])
