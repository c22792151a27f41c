"""Every position scheme against its paper's formula, element by element, and inside a model."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from models.attention import attention_weights
from models.attention_maps import attention_maps
from models.config import ModelConfig
from models.masks import Mask
from models.positions import Alibi, Learned, Rotary, Sinusoidal
from models.relative_attention import ShawAttention, by_distance, by_key
from models.transformer import Transformer

D = 6
EXACT = {"atol": 1e-12, "rtol": 1e-12}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def table(length, start=0, dtype=torch.double):
    return Sinusoidal().embed(torch.zeros(1, length, D, dtype=dtype), start)[0]


def heads(*lengths, num_heads=2, width=4):
    return [torch.randn(2, num_heads, length, width, dtype=torch.double) for length in lengths]


def rotation(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.double)


# Sinusoids


def test_sines_and_cosines_interleave():
    for p, row in enumerate(table(50)):
        for i in range(D // 2):
            assert row[2 * i].item() == pytest.approx(math.sin(p / 10000 ** (2 * i / D)), abs=1e-12)
            assert row[2 * i + 1].item() == pytest.approx(math.cos(p / 10000 ** (2 * i / D)), abs=1e-12)


def test_every_position_of_a_row_gets_its_own_and_every_row_the_same():
    x = torch.randn(3, 5, D, dtype=torch.double)
    assert_close(Sinusoidal().embed(x) - x, table(5).expand(3, 5, D))


def test_a_later_start_continues_the_sequence():
    assert_close(table(3, start=7), table(10)[7:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("shift", [1, 7])
def test_a_shift_is_a_linear_map_that_does_not_depend_on_where_it_starts(shift):
    """PE(p + Δ) turns each pair (sin, cos) of PE(p) by Δ / 10000^(2i/D), whatever p is."""
    rows = table(40)
    fixed = torch.block_diag(*[rotation(-shift / 10000 ** (2 * i / D)) for i in range(D // 2)])
    assert_close(rows[:-shift] @ fixed.T, rows[shift:], **EXACT)


def test_half_precision_rounds_the_result_and_not_the_position():
    assert_close(table(3, start=1001, dtype=torch.bfloat16), table(3, start=1001).bfloat16(), atol=4e-3, rtol=0)


# Learned


def test_a_learned_position_is_a_row_of_its_table_added_to_every_sentence():
    positions = Learned(10, D).double()
    x = torch.randn(3, 4, D, dtype=torch.double)
    assert_close(positions.embed(x, start=6), x + positions.table[6:], **EXACT)


@pytest.mark.parametrize("start, length", [(0, 11), (10, 1)])
def test_more_positions_than_were_learned_are_refused(start, length):
    message = "^11 tokens are more than the model.max_positions=10 .*lower search.max_source_tokens"
    with pytest.raises(ValueError, match=message):
        Learned(10, D).embed(torch.zeros(1, length, D), start)


# Rotary


def test_rotary_turns_neighbouring_entries_by_the_angles_of_the_paper():
    q, k = heads(3, 3)
    turned_q, turned_k = Rotary().rotate(q, k, start=5)
    for x, turned in (q, turned_q), (k, turned_k):
        for m in range(3):
            for i in range(2):
                angle = (5 + m) / 10000 ** (2 * i / 4)
                pair = slice(2 * i, 2 * i + 2)
                assert_close(turned[:, :, m, pair], x[:, :, m, pair] @ rotation(angle).T, **EXACT)


def test_rotary_scores_depend_on_the_distance_alone():
    """The same query and key everywhere: the scores are constant along every diagonal, wherever counting starts."""
    q, k = (x.expand(-1, -1, 9, -1) for x in heads(1, 1))
    early, late = (turned_q @ turned_k.mT for turned_q, turned_k in (Rotary().rotate(q, k, p) for p in (0, 1000)))
    assert_close(early[..., 1:, 1:], early[..., :-1, :-1], **EXACT)
    assert (early[..., 0, 1:] - early[..., 0, :-1]).abs().min() > 1e-6
    assert_close(late, early, atol=1e-11, rtol=0)


def test_rotary_keeps_lengths_and_a_later_start_continues_the_sequence():
    q, k = heads(5, 5)
    whole = Rotary().rotate(q, k)
    assert_close(whole[0].norm(dim=-1), q.norm(dim=-1), **EXACT)
    for x, later in zip(whole, Rotary().rotate(q[:, :, 2:], k[:, :, 2:], start=2), strict=True):
        assert_close(later, x[:, :, 2:], **EXACT)


def test_rotary_rounds_the_result_and_not_the_angle():
    q, k = heads(3, 3)
    rounded = Rotary().rotate(q.bfloat16(), k.bfloat16(), start=1001)
    for x, exact in zip(rounded, Rotary().rotate(q, k, start=1001), strict=True):
        assert x.dtype == torch.bfloat16
        assert_close(x.double(), exact, atol=3e-2, rtol=0)


# Shaw


def shaw_by_hand(attend, q, k, v, visible):
    """Equations (3) to (5) of the paper, sums written out; positions count from the end."""
    reach, (num_queries, width), num_keys = attend.max_distance, q.shape[-2:], k.size(-2)
    outputs = torch.zeros_like(q)
    for batch in range(q.size(0)):
        for head in range(q.size(1)):
            for i in range(num_queries):
                place = i + num_keys - num_queries
                a = [max(-reach, min(reach, j - place)) + reach for j in range(num_keys)]
                seen = [j for j in range(num_keys) if visible is None or visible[0, 0, i, j]]
                e = {j: q[batch, head, i] @ (k[batch, head, j] + attend.keys[a[j]]) / math.sqrt(width) for j in seen}
                total = sum(score.exp() for score in e.values())
                for j in seen:
                    outputs[batch, head, i] += e[j].exp() / total * (v[batch, head, j] + attend.values[a[j]])
    return outputs


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True), Mask(causal=True, window=3)])
@pytest.mark.parametrize("num_queries, num_keys", [(6, 6), (2, 6), (1, 6), (1, 1)])
@pytest.mark.parametrize("reach", [1, 2, 9])
def test_shaw_is_the_formula_of_the_paper(reach, num_queries, num_keys, mask):
    q, k, v = heads(num_queries, num_keys, num_keys)
    attend = ShawAttention(4, reach).double()
    with torch.no_grad():
        expected = shaw_by_hand(attend, q, k, v, mask.dense(num_queries, num_keys))
        assert_close(attend(q, k, v, mask), expected, **EXACT)


def test_shaw_tells_no_distance_beyond_its_reach_from_another():
    attend = ShawAttention(4, 2).double()
    q, k = heads(1, 1)
    weights = attend.weights(q.expand(-1, -1, 9, -1), k.expand(-1, -1, 9, -1), Mask())[:, :, 4]  # of the middle query
    for near, far in (0, 1), (1, 2), (6, 7), (7, 8):
        assert_close(weights[..., near], weights[..., far], **EXACT)
    for near, far in (2, 3), (3, 4), (4, 5), (5, 6):
        assert ((weights[..., near] - weights[..., far]).abs() > 1e-6).all()


def test_shaw_with_empty_tables_is_scaled_dot_product_attention():
    q, k, v = heads(3, 5, 5)
    attend = ShawAttention(4, 2).double()
    torch.nn.init.zeros_(attend.keys)
    torch.nn.init.zeros_(attend.values)
    keys = torch.tensor([[True] * 5, [True, True, False, False, False]])
    assert_close(attend(q, k, v, Mask(keys)), attention_weights(q, k, Mask(keys)) @ v, **EXACT)


def test_shaw_drops_a_weight_for_the_value_and_its_distance_together():
    """Where the value is minus the distance's vector, whatever is dropped, nothing is left."""
    q, k = heads(4, 4)
    attend = ShawAttention(4, 2).double()
    torch.nn.init.ones_(attend.values)
    dropped = attend(q, k, -torch.ones_like(k), Mask(), dropout=0.5)
    assert_close(dropped, torch.zeros_like(dropped), **EXACT)
    sums = attend(q, k, torch.ones_like(k), Mask(), dropout=0.5) / 2
    assert (sums - 1).abs().max() > 0.1


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 4), (3, 3), (2, 5), (5, 2)])
def test_moving_by_distance_and_by_key_are_each_others_inverse(queries, keys):
    x = torch.randn(2, queries, keys, dtype=torch.double)
    moved = by_distance(x)
    assert moved.shape == (2, queries, queries + keys)
    assert torch.equal(by_key(moved), x)
    for i in range(queries):
        for j in range(keys):
            assert torch.equal(moved[:, i, j - (i + keys - queries) + keys], x[:, i, j])
    assert_close(moved.sum(), x.sum(), **EXACT)


# ALiBi


def test_alibi_is_the_matrix_of_the_paper():
    """Four heads have the slopes 1/4, 1/16, 1/64, 1/256."""
    distance = torch.tensor([[0, 1, 2, 3], [1, 0, 1, 2], [2, 1, 0, 1], [3, 2, 1, 0]], dtype=torch.double)
    expected = torch.stack([-distance / 4, -distance / 16, -distance / 64, -distance / 256])[None]
    (q,) = heads(4, num_heads=4)
    assert_close(Alibi(4).score_bias(q, 4), expected, **EXACT)
    assert_close(Alibi(4).score_bias(q[:, :, -1:], 4), expected[:, :, -1:], **EXACT)


def slopes_of_the_paper(n):
    """The published code of ALiBi, as it stands there."""

    def get_slopes_power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        ratio = start
        return [start * ratio**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return get_slopes_power_of_2(closest) + slopes_of_the_paper(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16])
def test_any_number_of_heads_has_the_slopes_of_the_papers_code(num_heads):
    (q,) = heads(1, num_heads=num_heads)
    expected = torch.tensor(slopes_of_the_paper(num_heads), dtype=torch.double)
    assert_close(-Alibi(num_heads).score_bias(q, 2)[0, :, 0, 0], expected, **EXACT)


# In a model

SCHEMES = ["sinusoidal", "learned", "rotary", "shaw", "alibi", "none"]
TINY = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=16, d_ff=16, num_heads=4, max_positions=32)
SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
CHOICES = {
    "plain": {"attention_kernel": "plain"},
    "window": {"attention_window": 3},
    "grouped": {"num_key_value_heads": 2},
}


def build(scheme, **choices):
    torch.manual_seed(0)
    return Transformer(replace(TINY, positions=scheme, max_distance=2, **choices), 13, 13, 0).double().eval()


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_is_a_row_of_the_full_pass_under_every_scheme(scheme, choices):
    model = build(scheme, **CHOICES[choices])
    target_in = torch.randint(1, 13, (3, 9))
    logits = model(SOURCE, target_in)
    state = model.start(model.encode(SOURCE))
    for start, end in (0, 1), (1, 2), (2, 6), (6, 7), (7, 8), (8, 9):
        stepped, state = model.step(target_in[:, start:end], state)
        assert_close(stepped, logits[:, end - 1], **EXACT)


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_padding_and_batch_mates_change_nothing_under_any_scheme(scheme, choices):
    model = build(scheme, **CHOICES[choices])
    target_in = torch.randint(1, 13, (3, 4))
    together = model(SOURCE, target_in)
    for row, length in enumerate((5, 3, 2)):
        alone = model(SOURCE[row : row + 1, :length], target_in[row : row + 1])
        assert_close(together[row], alone[0], **EXACT)


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "shaw"])
def test_plain_equals_fused_under_every_scheme(scheme):
    target_in = torch.randint(1, 13, (3, 6))
    plain, fused = (build(scheme, attention_kernel=kernel)(SOURCE, target_in) for kernel in ("plain", "fused"))
    assert_close(plain, fused, **EXACT)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_only_learned_positions_end(scheme):
    model = build(scheme)
    long = torch.randint(4, 13, (1, 300))
    if scheme == "learned":
        with pytest.raises(ValueError, match="300 tokens are more than the model.max_positions=32"):
            model.encode(long)
        memory = model.encode(SOURCE)
        _, state = model.step(torch.full((3, 32), 4), model.start(memory))
        with pytest.raises(ValueError, match="33 tokens are more than the model.max_positions=32"):
            model.step(torch.full((3, 1), 4), state)
    else:
        logits = model(long, long)
        assert logits.shape == (1, 300, 13) and logits.isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_parameter_of_a_scheme_learns(scheme):
    model = build(scheme)
    model(SOURCE, torch.randint(1, 13, (3, 6))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_has_pictures(scheme):
    maps = attention_maps(build(scheme), SOURCE, torch.full((3, 4), 5))
    for weights in maps.encoder:
        assert_close(weights.sum(-1), torch.ones(3, 4, 5, dtype=torch.double), **EXACT)


@pytest.mark.parametrize("precision", [torch.bfloat16, "autocast"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_computes_in_16_bits(scheme, precision):
    model, target_in = build(scheme), torch.full((3, 4), 5)
    exact = model(SOURCE, target_in)
    if precision == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model.float()(SOURCE, target_in)
    else:
        logits = model.to(precision)(SOURCE, target_in)
    assert_close(logits.double(), exact, atol=0.15, rtol=0)
