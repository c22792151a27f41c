"""Without positions a Transformer sees sets; every scheme makes them sequences."""

import pytest
import torch
from torch.testing import assert_close

from models.config import ModelConfig
from models.transformer import Transformer

SOURCE = torch.tensor([[4, 5, 6, 7, 8, 9, 3]])
TARGET_IN = torch.tensor([[2, 4, 5, 6]])
ORDER = [4, 0, 6, 2, 5, 1, 3]
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def build(positions):
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=16, num_heads=4, positions=positions)
    return Transformer(config, 13, 13, 0).double().eval()


def test_without_positions_permuting_the_source_permutes_its_states():
    model = build("none")
    assert_close(model.encode(SOURCE[:, ORDER]).states, model.encode(SOURCE).states[:, ORDER], **EXACT)


def test_without_positions_the_order_of_the_source_is_nothing_to_the_decoder():
    model = build("none")
    assert_close(model(SOURCE[:, ORDER], TARGET_IN), model(SOURCE, TARGET_IN), **EXACT)


def test_without_positions_equal_tokens_have_equal_states():
    states = build("none").encode(torch.tensor([[4, 5, 4, 3]])).states
    assert_close(states[:, 0], states[:, 2], **EXACT)


def test_without_positions_a_last_token_sees_the_others_as_a_set():
    """The causal mask tells a decoder how many tokens came before, not in which order: within one layer."""
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, num_heads=4, positions="none")
    model = Transformer(config, 13, 13, 0).double().eval()
    swapped = TARGET_IN[:, [2, 0, 1, 3]]
    assert_close(model(SOURCE, swapped)[:, -1], model(SOURCE, TARGET_IN)[:, -1], **EXACT)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "shaw", "alibi"])
def test_every_scheme_tells_the_order(positions):
    model = build(positions)
    moved = model.encode(SOURCE[:, ORDER]).states - model.encode(SOURCE).states[:, ORDER]
    assert (moved.abs().amax(-1) > 1e-4).all()
    assert ((model(SOURCE[:, ORDER], TARGET_IN) - model(SOURCE, TARGET_IN)).abs().amax(-1) > 1e-4).all()
    twins = model.encode(torch.tensor([[4, 5, 4, 3]])).states
    assert (twins[:, 0] - twins[:, 2]).abs().amax() > 1e-4
