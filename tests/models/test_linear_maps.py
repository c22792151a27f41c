"""Products with prepared weights come near the exact ones, and a row's depends on that row alone."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from models.config import ModelConfig
from models.linear_maps import (
    LARGEST,
    LINEAR_MAPS,
    NARROW,
    Int8Linear,
    NarrowInt8Linear,
    cuts_sums,
    packs_weights,
    quantise,
    with_linear_maps,
)
from models.transformer import Transformer

NARROW_TOO = [
    (Int8Linear, LARGEST),
    pytest.param(NarrowInt8Linear, NARROW, marks=pytest.mark.skipif(not packs_weights(), reason="needs oneDNN")),
]
"""What rounds to 8 bits, and its largest activation."""


def test_whole_numbers_times_scales_are_the_numbers_to_within_half_a_scale():
    x = torch.randn(5, 40) * torch.logspace(-6, 6, 5)[:, None]
    whole, scale = quantise(x)
    assert whole.dtype == torch.int8 and whole.abs().amax(-1).tolist() == [127] * 5
    assert ((whole * scale - x).abs() <= scale * 0.5001).all()


@pytest.mark.parametrize(("kind", "largest"), NARROW_TOO)
def test_a_row_of_zeros_stays_zeros(kind, largest):
    assert_close(kind(torch.randn(4, 8), torch.ones(4))(torch.zeros(2, 8)), torch.ones(2, 4))


@pytest.mark.parametrize(("kind", "largest"), NARROW_TOO)
def test_the_greatest_sums_are_exact(kind, largest):
    y = kind(torch.ones(40, 64))(torch.ones(70, 64))
    assert_close(y, torch.full((70, 40), 64.0), rtol=1e-6, atol=0)


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists() or not packs_weights(), reason="needs Linux and oneDNN")
def test_a_cpu_that_cuts_sums_of_products_is_known():
    flags = Path("/proc/cpuinfo").read_text().split()
    assert cuts_sums() == ("avx512_vnni" not in flags and "avx_vnni" not in flags)
    assert isinstance(LINEAR_MAPS["int8"](torch.ones(4, 4)), NarrowInt8Linear if cuts_sums() else Int8Linear)


@pytest.mark.parametrize(("kind", "largest"), NARROW_TOO)
@pytest.mark.parametrize("bias", [True, False])
def test_8_bits_are_the_product_of_the_rounded_matrices(bias, kind, largest):
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias)
    x = torch.randn(2, 90, 64)
    (rows, scale), (weight, weight_scale) = quantise(x.view(-1, 64), largest), quantise(linear.weight.detach())
    expected = (rows.double() * scale) @ (weight.double() * weight_scale).T
    expected = expected + linear.bias if bias else expected
    y = kind(linear.weight, linear.bias)(x)
    assert y.shape == (2, 90, 48) and y.dtype == torch.float32
    assert_close(y.view(-1, 48).double(), expected.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kind", "error"), [("32", 1e-6), ("bf16", 0.01), ("int8", 0.02)])
def test_it_comes_near_the_exact_product(kind, error, bias):
    torch.manual_seed(0)
    for width, rows in (30, 8), (30, 80), (1200, 8):  # packed for the many rows, and for the many weights
        linear, x = nn.Linear(256, width, bias=bias), torch.randn(4, rows, 256)
        exact = linear(x)
        y = LINEAR_MAPS[kind](linear.weight, linear.bias)(x)
        assert y.shape == exact.shape and y.dtype == torch.float32
        assert (y - exact).norm() < error * exact.norm()


@pytest.mark.parametrize("kind", LINEAR_MAPS)
def test_what_becomes_of_a_row_does_not_depend_on_the_others(kind, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("models.linear_maps.PIECE", 1000)
    monkeypatch.setattr("models.linear_maps.PACKED", 100)
    linear = LINEAR_MAPS[kind](torch.randn(33, 16), torch.randn(33))
    x = torch.randn(100, 16)
    together = linear(x)
    x[1:] *= 1000
    assert torch.equal(linear(x)[0], together[0]) and torch.equal(linear(x[:1])[0], together[0])


@pytest.mark.parametrize("kind", ["32", "bf16"])
def test_where_weights_cannot_be_packed_the_product_is_the_same(kind, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("models.linear_maps.PACKED", 100)
    weight, bias, x = torch.randn(48, 32), torch.randn(48), torch.randn(5, 32)
    here = LINEAR_MAPS[kind](weight, bias)(x)
    monkeypatch.setattr("models.linear_maps.packs_weights", lambda: False)
    elsewhere = LINEAR_MAPS[kind](weight, bias)
    assert torch.equal(elsewhere.weight, weight.to(elsewhere.dtype))
    assert_close(elsewhere(x), here, atol=1e-5 if kind == "32" else 0.1, rtol=0.01)


def test_a_model_keeps_its_own_weights_and_shares_all_that_is_not_rounded():
    torch.manual_seed(0)
    model = Transformer(ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, d_ff=64, num_heads=2), 20, 20, 0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rounded = with_linear_maps(model.eval(), "int8")
    assert not any(isinstance(module, nn.Linear) for module in rounded.modules())
    assert rounded.target_embedding.weight is model.target_embedding.weight
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in before.items())
    source, target = torch.randint(1, 20, (3, 7)), torch.randint(1, 20, (3, 5))
    with torch.inference_mode():
        exact, near = model(source, target), rounded(source, target)
    assert (near - exact).norm() < 0.05 * exact.norm()
