"""Properties of attention, held by the plain formula and the fused kernels alike."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from models import attention, fused_attention
from models.attention import attention_weights
from models.masks import Mask

PLAIN = attention.scaled_dot_product_attention
FUSED = fused_attention.scaled_dot_product_attention
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PADDED = torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])
BLIND = torch.tensor([[True, True, True, True, True], [False, False, False, False, False]])
MASKS = {
    "nothing": Mask(),
    "padding": Mask(PADDED),
    "a row of padding alone": Mask(BLIND),
    "causal": Mask(causal=True),
    "causal padding": Mask(PADDED, causal=True),
    "window": Mask(window=2),
    "causal window": Mask(causal=True, window=2),
    "window, one global": Mask(window=2, num_global=1),
    "causal window, one global": Mask(causal=True, window=2, num_global=1),
    "everything": Mask(BLIND, causal=True, window=3),
    "everything, one global": Mask(BLIND, causal=True, window=2, num_global=1),
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def queries_keys_values(num_queries=5, num_keys=5, batch=2, dtype=torch.double, device="cpu"):
    shapes = (batch, 3, num_queries, 4), (batch, 3, num_keys, 4), (batch, 3, num_keys, 4)
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
def test_worked_example(attend):
    """Three tokens of width 2: scores, scaled scores, weights and outputs, each computed by hand."""
    q = k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]])
    v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]]])
    scores = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0]])
    scaled = torch.tensor([[0.707, 0.0, 0.707], [0.0, 0.707, 0.707], [0.707, 0.707, 1.414]])
    weights = torch.tensor([[0.401, 0.198, 0.401], [0.198, 0.401, 0.401], [0.248, 0.248, 0.503]])
    outputs = torch.tensor([[0.602, 0.398], [0.398, 0.602], [0.5, 0.5]])

    rounded = {"atol": 6e-4, "rtol": 0}
    assert_close((q @ k.mT)[0, 0], scores)
    assert_close(scores / math.sqrt(2), scaled, **rounded)
    assert_close(math.exp(0.707), 2.028, **rounded)
    assert_close(attention_weights(q, k, Mask())[0, 0], weights, **rounded)
    assert_close(attend(q, k, v, Mask())[0, 0], outputs, **rounded)


def test_rows_of_weights_sum_to_one_under_every_mask():
    q, k, _ = queries_keys_values()
    for mask in MASKS.values():
        weights = attention_weights(q, k, mask)
        sees = torch.ones(2, 1, 5, dtype=torch.double)
        if mask.keys is BLIND:
            sees[1] = 0
        assert_close(weights.sum(-1), sees.expand(2, 3, 5))
        assert (weights >= 0).all()


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
def test_outputs_lie_in_the_hull_of_the_values(attend):
    """A point is in the hull if no direction reaches further than the furthest value."""
    q, k, v = queries_keys_values()
    directions = torch.randn(4, 100, dtype=torch.double)
    outputs = attend(5 * q, k, v, Mask()) @ directions
    values = v @ directions
    assert (outputs <= values.amax(-2, keepdim=True) + 1e-12).all()
    assert (outputs >= values.amin(-2, keepdim=True) - 1e-12).all()


def test_the_scale_keeps_scores_at_unit_variance():
    """Var(q·k) = K for independent entries of unit variance, so Var(q·k / √K) = 1."""
    for width in 4, 64, 256:
        q, k = torch.randn(2, 20_000, width)
        scores = (q * k).sum(-1)
        assert scores.var().item() == pytest.approx(width, rel=0.05)
        # Against a zero key, the weight of a key tells the score that attention gave it.
        keys = torch.stack([k, torch.zeros_like(k)], dim=1)[:, None]
        scaled = attention_weights(q[:, None, None].double(), keys.double(), Mask())[:, 0, 0].log().diff(dim=-1)
        assert scaled.var().item() == pytest.approx(1, rel=0.05)


def test_unscaled_scores_saturate_the_softmax_and_its_gradient_vanishes():
    """The reason for the scale: wide heads would put all weight on one key, where the Jacobian diag(w) - w wᵀ is 0."""

    def largest_weight_and_gradient(q, k):
        weights = attention_weights(q, k, Mask())[:, 0, 0]
        jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
        return weights.amax(-1).mean().item(), torch.linalg.matrix_norm(jacobian).mean().item()

    scaled, unscaled = [], []
    for width in 4, 64, 1024:
        q = torch.randn(2000, 1, 1, width, dtype=torch.double)
        k = torch.randn(2000, 1, 8, width, dtype=torch.double)
        scaled.append(largest_weight_and_gradient(q, k))
        unscaled.append(largest_weight_and_gradient(q * math.sqrt(width), k))

    for weight, gradient in scaled:
        assert weight == pytest.approx(0.36, abs=0.03)
        assert gradient == pytest.approx(0.36, abs=0.03)
    weights, gradients = zip(*unscaled, strict=True)
    assert weights[0] < weights[1] < weights[2]
    assert weights[2] > 0.95
    assert gradients[0] > 2 * gradients[1] > 4 * gradients[2]
    assert gradients[2] < 0.06


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
def test_attention_sees_a_set(attend):
    q, k, v = queries_keys_values()
    order = torch.tensor([3, 0, 4, 1, 2])
    assert_close(attend(q, k[:, :, order], v[:, :, order], Mask()), attend(q, k, v, Mask()))
    assert_close(attend(q[:, :, order], k, v, Mask()), attend(q, k, v, Mask())[:, :, order])


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
@pytest.mark.parametrize("name", MASKS)
def test_a_hidden_key_has_no_influence(attend, name):
    q, k, v = queries_keys_values()
    visible = MASKS[name].dense(5, 5)
    before = attend(q, k, v, MASKS[name])
    for key in range(5):
        blind_to_it = torch.zeros(2, 1, 5) if visible is None else (~visible[..., key]).expand(2, 1, 5)
        loud_k, loud_v = k.clone(), v.clone()
        loud_k[:, :, key] = loud_v[:, :, key] = 1e6
        after = attend(q, loud_k, loud_v, MASKS[name])
        unchanged = (before == after).all(-1)
        assert (unchanged == (blind_to_it > 0)).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_queries, num_keys", [(5, 5), (2, 5), (1, 5)])
@pytest.mark.parametrize("name", MASKS)
def test_plain_equals_fused_in_outputs_and_gradients(name, num_queries, num_keys, with_bias, device):
    inputs = queries_keys_values(num_queries, num_keys, device=device)
    bias = torch.randn(1, 3, num_queries, num_keys, dtype=torch.double, device=device) if with_bias else None
    mask = MASKS[name]
    if mask.keys is not None:
        mask = replace(mask, keys=mask.keys.to(device))
    plain, fused = (attend(*inputs, mask, bias) for attend in (PLAIN, FUSED))
    assert_close(plain, fused, atol=1e-12, rtol=1e-12)
    seed = torch.randn_like(plain)
    for slow, fast in zip(
        torch.autograd.grad(plain, inputs, seed), torch.autograd.grad(fused, inputs, seed), strict=True
    ):
        assert_close(slow, fast, atol=1e-12, rtol=1e-12)


def weights_times_values(q, k, v, mask):
    return attention_weights(q, k, mask) @ v


@pytest.mark.parametrize("autocast", [False, True])
def test_a_cpu_computes_16_bit_attention_in_32_bits(autocast):
    q, k, v = queries_keys_values(dtype=torch.bfloat16)
    bias = torch.randn(2, 3, 5, 5, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        actual = FUSED(q, k, v, Mask(PADDED), bias)
    expected = FUSED(q.float(), k.float(), v.float(), Mask(PADDED), bias.float())
    assert_close(actual, expected.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attend", [PLAIN, FUSED])
@pytest.mark.parametrize("name", MASKS)
def test_short_floats_come_near_the_64_bit_result(name, attend, dtype, device):
    inputs = queries_keys_values(dtype=dtype, device=device)
    mask = MASKS[name]
    if mask.keys is not None:
        mask = replace(mask, keys=mask.keys.to(device))
    exact = [x.detach().double().requires_grad_() for x in inputs]
    near, expected = attend(*inputs, mask), PLAIN(*exact, mask)
    seed = torch.randn_like(near)
    for actual, right in zip(
        (near, *torch.autograd.grad(near, inputs, seed)),
        (expected, *torch.autograd.grad(expected, exact, seed.double())),
        strict=True,
    ):
        assert_close(actual.double(), right, atol=8 * torch.finfo(dtype).eps, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("length", [3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attend", [PLAIN, FUSED, weights_times_values])
def test_a_row_without_visible_keys_is_zero_and_leaves_gradients_finite(attend, dtype, length, device):
    """Scores fifty times the usual size do not overflow either."""
    q, k, v = queries_keys_values(length, length, dtype=dtype, device=device)
    keys = torch.tensor([[False], [True]], device=device).expand(2, length)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output = attend(50 * q, k, v, Mask(keys))
        output.float().square().sum().backward()
    assert (output[0] == 0).all()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
        assert (tensor.grad[0] == 0).all()
        assert tensor.grad[1].any()

    alone = attend(50 * q[1:], k[1:], v[1:], Mask(keys[1:]))
    assert_close(output[1:], alone)


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
def test_scores_that_fp16_holds_do_not_overflow_before_they_are_scaled(attend):
    """150² · 4 is beyond fp16, half of it is not."""
    q = k = torch.full((1, 1, 2, 4), 150.0, dtype=torch.float16)
    v = torch.tensor([[[[1.0], [2.0]]]], dtype=torch.float16)
    assert_close(attend(q, k, v, Mask()), torch.full((1, 1, 2, 1), 1.5, dtype=torch.float16))


@pytest.mark.parametrize("attend", [PLAIN, FUSED])
def test_dropout_acts_on_the_weights_and_keeps_their_mean(attend):
    q, k, v = queries_keys_values(num_queries=4000, batch=1)
    ones = torch.ones_like(v)
    sums = attend(q, k, ones, Mask(), dropout=0.5)[..., 0]  # of the weights that are left
    assert sums.std() > 0.1
    assert sums.mean().item() == pytest.approx(1, abs=0.03)
