"""Multi-head attention is single heads side by side, at the price of one of full width."""

import math

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from models.attention import DotProductAttention
from models.masks import Mask
from models.multi_head_attention import CrossAttention, SelfAttention
from models.positions import RelativePositions

D = 12
EXACT = {"atol": 1e-12, "rtol": 1e-12}
MASKS = [Mask(), Mask(causal=True), Mask(torch.tensor([[True] * 5, [True, True, False, False, False]]))]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def self_attention(num_heads, num_key_value_heads=None, width=D):
    shared = num_key_value_heads or num_heads
    return SelfAttention(width, num_heads, shared, DotProductAttention(), RelativePositions()).double()


def cross_attention(num_heads, num_key_value_heads=None):
    return CrossAttention(D, num_heads, num_key_value_heads or num_heads, DotProductAttention()).double()


def randomise(module):
    """Biases too, which start at zero."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def single_head(x, y, mask, query, key, value):
    """softmax(q kᵀ / √K) v of one head, each of whose projections is a weight and a bias."""
    q, k, v = (a @ weight.T + bias for a, (weight, bias) in ((x, query), (y, key), (y, value)))
    scores = q @ k.mT / math.sqrt(q.size(-1))
    visible = mask.dense(x.size(1), y.size(1))
    return (scores if visible is None else scores.masked_fill(~visible[:, 0], -math.inf)).softmax(-1) @ v


def heads_of(weight, bias, num_heads):
    return list(zip(weight.chunk(num_heads), bias.chunk(num_heads), strict=True))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("num_heads", [1, 2, 3, 12])
def test_heads_are_single_attentions_of_a_part_of_the_width_concatenated_and_mixed(num_heads, mask):
    attention = randomise(self_attention(num_heads))
    x = torch.randn(2, 5, D, dtype=torch.double)
    joint = attention.query_key_value
    projections = [
        heads_of(weight, bias, num_heads)
        for weight, bias in zip(joint.weight.chunk(3), joint.bias.chunk(3), strict=True)
    ]
    heads = [single_head(x, x, mask, *head) for head in zip(*projections, strict=True)]
    assert [head.size(-1) for head in heads] == [D // num_heads] * num_heads
    assert_close(attention(x, mask)[0], attention.output(torch.cat(heads, dim=-1)), **EXACT)


@pytest.mark.parametrize("num_heads", [1, 3])
def test_so_are_the_heads_across_two_sequences(num_heads):
    attention = randomise(cross_attention(num_heads))
    x, y = torch.randn(2, 3, D, dtype=torch.double), torch.randn(2, 5, D, dtype=torch.double)
    query = heads_of(attention.query.weight, attention.query.bias, num_heads)
    joint = attention.key_value
    key, value = (
        heads_of(weight, bias, num_heads)
        for weight, bias in zip(joint.weight.chunk(2), joint.bias.chunk(2), strict=True)
    )
    for mask in Mask(), MASKS[-1]:
        heads = [single_head(x, y, mask, *head) for head in zip(query, key, value, strict=True)]
        expected = attention.output(torch.cat(heads, dim=-1))
        assert_close(attention(x, attention.read(y, mask), mask), expected, **EXACT)


def test_heads_differ_in_where_they_look():
    attention = randomise(self_attention(3))
    weights = attention.weights(torch.randn(1, 5, D, dtype=torch.double), Mask())[0]
    for one, other in (0, 1), (0, 2), (1, 2):
        assert (weights[one] - weights[other]).abs().max() > 0.1


def flops(attention, x):
    with FlopCounterMode(display=False) as counter:
        attention(x, Mask())
    return counter.get_total_flops()


@pytest.mark.parametrize("num_heads", [2, 3, 12])
def test_many_heads_cost_what_one_of_full_width_costs(num_heads):
    """In parameters, 4 D² + 4 D; and in operations, two for each factor of the products: 4 D² and 2 L D a token."""
    one, many = self_attention(1), self_attention(num_heads)
    parameters = [sum(p.numel() for p in attention.parameters()) for attention in (one, many)]
    assert parameters == [4 * D * D + 4 * D] * 2
    x = torch.randn(2, 5, D, dtype=torch.double)
    assert flops(one, x) == flops(many, x) == 2 * 2 * 5 * (4 * D * D + 2 * 5 * D)


def test_across_two_sequences_weights_are_a_rectangle_whose_rows_sum_to_one():
    """Three queries, five keys; the second sentence has two real ones."""
    attention = randomise(cross_attention(2))
    x, y = torch.randn(2, 3, D, dtype=torch.double), torch.randn(2, 5, D, dtype=torch.double)
    weights = attention.weights(x, y, MASKS[-1])
    assert weights.shape == (2, 2, 3, 5)
    assert_close(weights.sum(-1), torch.ones(2, 2, 3, dtype=torch.double), **EXACT)
    assert (weights[0] > 0).all() and (weights[1, ..., :2] > 0).all() and (weights[1, ..., 2:] == 0).all()


def test_weights_are_exactly_zero_on_the_future_and_on_nothing_else():
    attention = randomise(self_attention(3))
    weights = attention.weights(torch.randn(2, 6, D, dtype=torch.double), Mask(causal=True))
    assert ((weights == 0) == torch.ones(6, 6).triu(1).bool()).all()


def repeat_heads(joint, widths, num_heads, num_key_value_heads):
    """The rows of keys and values of a joint projection, each head as often as heads of queries share it."""
    *query, key, value = joint.split(widths)
    repeat = num_heads // num_key_value_heads
    repeated = [
        x.unflatten(0, (num_key_value_heads, -1)).repeat_interleave(repeat, 0).flatten(0, 1) for x in (key, value)
    ]
    return torch.cat([*query, *repeated])


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 3])
def test_grouped_queries_are_full_attention_whose_key_and_value_heads_repeat(num_key_value_heads):
    grouped, full = randomise(self_attention(6, num_key_value_heads)), self_attention(6)
    shared = num_key_value_heads * D // 6
    for name in "weight", "bias":
        joint = getattr(grouped.query_key_value, name).data
        getattr(full.query_key_value, name).data = repeat_heads(joint, [D, shared, shared], 6, num_key_value_heads)
    full.output.load_state_dict(grouped.output.state_dict())
    x = torch.randn(2, 5, D, dtype=torch.double)
    for mask in MASKS:
        assert_close(grouped(x, mask)[0], full(x, mask)[0], **EXACT)
        assert_close(grouped.weights(x, mask), full.weights(x, mask), **EXACT)


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 3])
def test_grouped_queries_across_two_sequences_are_full_attention_likewise(num_key_value_heads):
    grouped, full = randomise(cross_attention(6, num_key_value_heads)), cross_attention(6)
    shared = num_key_value_heads * D // 6
    for name in "weight", "bias":
        joint = getattr(grouped.key_value, name).data
        getattr(full.key_value, name).data = repeat_heads(joint, [shared, shared], 6, num_key_value_heads)
    full.query.load_state_dict(grouped.query.state_dict())
    full.output.load_state_dict(grouped.output.state_dict())
    x, y, mask = torch.randn(2, 3, D, dtype=torch.double), torch.randn(2, 5, D, dtype=torch.double), MASKS[-1]
    assert_close(grouped(x, grouped.read(y, mask), mask), full(x, full.read(y, mask), mask), **EXACT)
    assert_close(grouped.weights(x, y, mask), full.weights(x, y, mask), **EXACT)


@pytest.mark.parametrize("num_key_value_heads", [1, 2, 6])
def test_what_is_remembered_has_only_the_heads_of_keys_and_values(num_key_value_heads):
    x = torch.randn(2, 5, D, dtype=torch.double)
    _, past = self_attention(6, num_key_value_heads)(x, Mask(causal=True))
    for remembered in past, cross_attention(6, num_key_value_heads).read(x, Mask()):
        assert remembered.keys.shape == remembered.values.shape == (2, num_key_value_heads, 5, 2)
