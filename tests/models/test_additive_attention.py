"""Additive attention is its formula, under every mask, and decodes step by step as it trains."""

import math

import pytest
import torch
from torch.testing import assert_close

from models.additive_attention import AdditiveAttention
from models.config import ModelConfig
from models.masks import Mask
from models.transformer import Transformer

EXACT = {"atol": 1e-12, "rtol": 1e-12}
PADDED = torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])
BLIND = torch.tensor([[True, True, True, True, True], [False, False, False, False, False]])
MASKS = {
    "nothing": Mask(),
    "padding": Mask(PADDED),
    "a row of padding alone": Mask(BLIND),
    "causal padding": Mask(PADDED, causal=True),
    "window": Mask(window=2),
    "causal window, one global": Mask(causal=True, window=2, num_global=1),
}


@pytest.fixture
def attend():
    torch.manual_seed(0)
    return AdditiveAttention(num_heads=3, head_width=4).double()


def queries_keys_values(num_queries=5):
    shapes = (2, 3, num_queries, 4), (2, 3, 5, 4), (2, 3, 5, 2)
    return [torch.randn(shape, dtype=torch.double, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("num_queries", [5, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_is_the_formula_written_out(attend, name, with_bias, num_queries):
    q, k, v = queries_keys_values(num_queries)
    mask = MASKS[name]
    visible = mask.dense(num_queries, 5)
    visible = torch.ones(2, 1, num_queries, 5) if visible is None else visible.expand(2, 1, num_queries, 5)
    bias = torch.randn(1, 3, num_queries, 5, dtype=torch.double) if with_bias else torch.zeros(1, 3, num_queries, 5)
    weights = attend.weights(q, k, mask, bias if with_bias else None)
    outputs = attend(q, k, v, mask, bias if with_bias else None)
    for b in range(2):
        for h in range(3):
            for i in range(num_queries):
                scores = [
                    sum(attend.vectors[h, d] * torch.tanh(q[b, h, i, d] + k[b, h, j, d]) for d in range(4)).item()
                    for j in range(5)
                ]
                powers = [math.exp(scores[j] + bias[0, h, i, j].item()) * visible[b, 0, i, j].item() for j in range(5)]
                total = sum(powers) or 1
                for j in range(5):
                    assert weights[b, h, i, j].item() == pytest.approx(powers[j] / total, abs=1e-12)
                for d in range(2):
                    expected = sum(powers[j] / total * v[b, h, j, d].item() for j in range(5))
                    assert outputs[b, h, i, d].item() == pytest.approx(expected, abs=1e-12)


def test_gradients_are_those_of_the_formula_and_reach_the_vectors(attend):
    mask = Mask(PADDED, causal=True)
    inputs = queries_keys_values()

    def attended(q, k, v, vectors):
        return torch.func.functional_call(attend, {"vectors": vectors}, (q, k, v, mask))

    assert torch.autograd.gradcheck(attended, (*inputs, attend.vectors))
    assert torch.autograd.grad(attended(*inputs, attend.vectors).square().sum(), attend.vectors)[0].all()


def test_a_row_without_visible_keys_is_zero_and_so_are_its_gradients(attend):
    inputs = queries_keys_values()
    output = attend(*inputs, Mask(BLIND))
    assert (output[1] == 0).all()
    assert output[0].all()
    for gradient in torch.autograd.grad(output.square().sum(), inputs):
        assert (gradient[1] == 0).all()
        assert gradient[0].any()


def test_dropout_acts_on_the_weights(attend):
    q, k, v = queries_keys_values()
    sums = attend(q, k, torch.ones_like(v), Mask(), dropout=0.5)
    assert (sums - 1).abs().max() > 0.1
    assert_close(attend(q, k, torch.ones_like(v), Mask()), torch.ones_like(q[..., :2]), **EXACT)


@pytest.mark.parametrize(
    "choices",
    [{}, {"num_key_value_heads": 1}, {"attention_window": 2, "global_positions": 1}],
    ids=["plain", "grouped", "window"],
)
def test_a_step_of_a_transformer_is_a_row_of_the_full_pass(choices):
    torch.manual_seed(0)
    config = ModelConfig(
        encoder_layers=2, decoder_layers=2, d_model=8, d_ff=16, num_heads=2, attention="additive", **choices
    )
    model = Transformer(config, 13, 13, 0).double().eval()
    source = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
    target_in = torch.randint(1, 13, (2, 6))
    logits = model(source, target_in)
    state = model.start(model.encode(source))
    for t in range(6):
        stepped, state = model.step(target_in[:, t : t + 1], state)
        assert_close(stepped, logits[:, t], **EXACT)


def test_autocast_to_bf16_gives_nearly_the_same(attend):
    attend.float()
    q, k, v = (x.float() for x in queries_keys_values())
    exact = attend(q, k, v, Mask(PADDED))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), Mask(PADDED))
    assert_close(rounded.float(), exact, atol=0.03, rtol=0.03)
