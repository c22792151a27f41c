"""The coverage penalty, against the attention maps of one full pass over what was returned."""

from contextlib import ExitStack

import pytest
import torch

from models.attention_maps import attention_maps
from models.config import ModelConfig
from models.coverage import attention_to_source, coverage
from models.length import LENGTH_NORMALISATIONS
from models.recurrent import RecurrentModel
from models.search import beam_search, score_targets
from models.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2
SPECIAL = {"bos_id": BOS, "eos_id": EOS, "forbidden_ids": (PAD, BOS)}
PENALTY = 0.7
AVERAGE = LENGTH_NORMALISATIONS["average"](1.0)
SOURCE = torch.tensor([[5, 6, 7, 8, 9, 2], [4, 9, 2, 0, 0, 0], [11, 10, 3, 2, 0, 0]])
LIMITS = torch.tensor([5, 3, 4])


def tiny(architecture=Transformer, /, **choices):
    torch.manual_seed(3)
    config = ModelConfig(**dict(encoder_layers=1, decoder_layers=3, d_model=16, d_ff=32, num_heads=4) | choices)
    model = architecture(config, 12, 12, pad_id=PAD).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.4)
    return model


def search(model, source=SOURCE, limits=LIMITS, penalty=PENALTY, **options):
    with ExitStack() as listening:
        counted = listening.enter_context(coverage(model, model.step, penalty)) if penalty else None
        state = (counted or model).start(model.encode(source))
        return beam_search(
            (counted or model).step,
            state,
            limits,
            bonus=counted.bonus if counted else None,
            length=AVERAGE,
            **SPECIAL | {"beam_size": 9, "num_hypotheses": 4} | options,
        )


def expected(model, source, hypothesis, layer):
    """(worth, bonus) of a hypothesis, from full passes."""
    source = source[source != PAD][None]
    target_in = torch.tensor([[BOS, *hypothesis.ids]])
    target_out = torch.tensor([[*hypothesis.ids, EOS]])
    worth = score_targets(
        model(source, target_in), target_out, pad_id=PAD, forbidden_ids=(PAD, BOS), length=AVERAGE
    ).item()
    received = attention_maps(model, source, target_in).cross[layer].mean(1).sum(1)
    return worth, PENALTY * received.clamp(max=1.0).log().sum().item()


MODELS = {
    "dot product": (Transformer, {}, 1),
    "one layer": (Transformer, {"decoder_layers": 1}, 0),
    "grouped queries": (Transformer, {"num_key_value_heads": 2}, 1),
    "additive": (Transformer, {"attention": "additive"}, 1),
    "performer": (Transformer, {"attention": "performer", "random_features": 8}, 1),
    "recurrent": (RecurrentModel, {}, 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_score_is_the_worth_and_the_coverage_of_a_full_pass(name):
    architecture, choices, layer = MODELS[name]
    model = tiny(architecture, **choices)
    finished = [(row, h) for row, found in zip(SOURCE, search(model), strict=True) for h in found if h.finished]
    by_hand = [expected(model, row, hypothesis, layer) for row, hypothesis in finished]
    assert sum(bonus < -0.01 for _, bonus in by_hand) > 2
    assert [h.score for _, h in finished] == pytest.approx([sum(each) for each in by_hand], abs=1e-5)


def test_the_list_is_ordered_by_what_the_penalty_makes_of_it_and_fewer_are_its_beginning():
    model = tiny()
    lists = search(model)
    assert lists != search(model, penalty=0)
    for found in lists:
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
    for count in (1, 2):
        assert search(model, num_hypotheses=count) == [found[:count] for found in lists]


def test_batch_mates_change_nothing():
    model = tiny()
    alone = [search(model, SOURCE[[i]][:, : int((SOURCE[i] != PAD).sum())], LIMITS[[i]])[0] for i in range(3)]
    for found, single in zip(search(model), alone, strict=True):
        assert [h.ids for h in found] == [h.ids for h in single]
        assert [h.score for h in found] == pytest.approx([h.score for h in single], abs=1e-5)


def test_nothing_is_left_listening():
    model = tiny()
    search(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_attention_to_the_source_is_refused():
    with pytest.raises(ValueError, match=r"search.coverage_penalty counts attention to the source, and this model"):
        attention_to_source(tiny(RecurrentModel, architecture="recurrent", attention="none"))
