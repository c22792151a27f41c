"""Attention maps are the weights with which the model really read, and asking for them leaves nothing behind."""

import pytest
import torch
from torch.testing import assert_close

from models.attention_maps import attention_maps, listening
from models.cache import share_heads
from models.config import ModelConfig
from models.layers import ATTENTIONS
from models.multi_head_attention import CrossAttention, SelfAttention
from models.recurrent import RecurrentModel
from models.transformer import Transformer

PAD = 0
SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
TARGET_IN = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 9]])


def build(kind=Transformer, **choices):
    torch.manual_seed(0)
    config = ModelConfig(**(dict(encoder_layers=3, decoder_layers=2, d_model=8, d_ff=16, num_heads=2) | choices))
    return kind(config, 13, 13, PAD).double().eval()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("shared", [0, 1], ids=["", "grouped"])
def test_values_averaged_by_the_maps_are_what_each_layer_read(attention, shared):
    model = build(attention=attention, num_key_value_heads=shared)
    within, across = [], []
    with listening(model, SelfAttention, lambda module, *given: within.append((module, given))):
        memory = model.encode(SOURCE)
        with listening(model, CrossAttention, lambda module, *given: across.append((module, given))):
            model.decode(TARGET_IN, memory)
    maps = attention_maps(model, SOURCE, TARGET_IN)
    assert (len(maps.encoder), len(maps.decoder), len(maps.cross)) == (3, 2, 2)
    for weights, (module, given) in zip([*maps.encoder, *maps.decoder], within, strict=True):
        v = share_heads(module.queries_keys_values(given[0], 0)[2], 2)
        assert_close(module.output(module.join(weights @ v)), module.forward(*given)[0])
    for weights, (module, given) in zip(maps.cross, across, strict=True):
        v = share_heads(module.keys_values(memory.states)[1], 2)
        assert_close(module.output(module.join(weights @ v)), module.forward(*given))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_rows_sum_to_one_and_see_neither_padding_nor_the_future(attention):
    maps = attention_maps(build(attention=attention), SOURCE, TARGET_IN)
    for layer in [*maps.encoder, *maps.decoder, *maps.cross]:
        assert_close(layer.sum(-1), torch.ones_like(layer[..., 0]))
    for layer in [*maps.encoder, *maps.cross]:
        assert layer[1, :, :, 3:].eq(0).all() and layer[0].ne(0).all()
    for layer in maps.decoder:
        assert layer.triu(1).eq(0).all() and layer[:, :, -1].ne(0).all()


def test_a_recurrent_model_has_the_maps_of_its_one_attention():
    maps = attention_maps(build(RecurrentModel, architecture="recurrent"), SOURCE, TARGET_IN)
    assert (maps.encoder, maps.decoder, [layer.shape for layer in maps.cross]) == ([], [], [(2, 2, 4, 5)])
    without = build(RecurrentModel, architecture="recurrent", attention="none")
    assert attention_maps(without, SOURCE, TARGET_IN) == ([], [], [])


def test_asking_leaves_nothing_behind():
    model = build()
    before = model(SOURCE, TARGET_IN)
    attention_maps(model, SOURCE, TARGET_IN)
    with pytest.raises(IndexError):
        attention_maps(model, SOURCE, TARGET_IN + 13)
    assert not any(module._forward_hooks for module in model.modules())
    assert_close(model(SOURCE, TARGET_IN), before, atol=0, rtol=0)
