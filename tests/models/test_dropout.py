"""Dropout drops at the stated rate, keeps the mean, and repeats itself for the same seed."""

import pytest
import torch
from torch.testing import assert_close

from models.dropout import Dropout

P = 0.3


def dropped(size, p=P, seed=1, dtype=torch.double):
    torch.manual_seed(seed)
    return Dropout(p)(torch.ones(size, dtype=dtype))


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_the_rate_the_mean_and_the_variance_are_those_of_dropout(p):
    n = 1_000_000
    y, sigma = dropped(n, p), (p * (1 - p) / n) ** 0.5
    assert abs((y == 0).double().mean() - p) < 5 * sigma
    assert abs(y.mean() - 1) < 5 * sigma / (1 - p)
    assert_close(y.var().item(), p / (1 - p), rtol=0.15, atol=0)


def test_what_is_kept_is_scaled_by_the_inverse_of_its_exact_probability():
    kept_values = 65536 - 19661  # of a 16-bit number; 0.3 is 19661 / 65536 to the nearest
    assert_close(dropped(1000).unique(), torch.tensor([0, 65536 / kept_values], dtype=torch.double))


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 8, 16])
def test_neighbours_are_dropped_independently(lag):
    n = 400_000
    kept = (dropped(n) != 0).double()
    both = (kept[lag:] * kept[:-lag]).mean()
    assert abs(both - (1 - P) ** 2) < 0.004


def test_two_calls_are_independent():
    torch.manual_seed(1)
    dropout, ones = Dropout(P), torch.ones(400_000)
    both = (dropout(ones) * dropout(ones) != 0).double().mean()
    assert abs(both - (1 - P) ** 2) < 0.004


def test_the_seed_decides():
    assert_close(dropped(1000, seed=5), dropped(1000, seed=5), rtol=0, atol=0)
    assert not torch.equal(dropped(1000, seed=5), dropped(1000, seed=6))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (7, 5), (2, 3, 5)])
def test_any_shape_will_do(shape):
    y = dropped(shape)
    assert y.shape == shape
    assert set(y.flatten().tolist()) <= {0.0, 65536 / (65536 - 19661)}


def test_a_transposed_input_is_dropped_element_by_element():
    x = torch.arange(1.0, 1001).view(10, 100).T
    y = Dropout(P)(x)
    assert_close(y[y != 0] / x[y != 0], torch.full_like(x[y != 0], 65536 / (65536 - 19661)))
    assert 0.2 < (y == 0).double().mean() < 0.4


def test_the_gradient_passes_where_the_input_did():
    x = torch.ones(1000, requires_grad=True)
    y = Dropout(P)(x)
    y.sum().backward()
    assert_close(x.grad, y.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_type_is_kept(dtype):
    assert dropped(10, dtype=dtype).dtype == dtype


def test_nothing_happens_in_evaluation_or_at_zero():
    x = torch.randn(10)
    assert Dropout(P).eval()(x) is x
    assert_close(Dropout(0.0)(x), x, rtol=0, atol=0)


def test_the_extremes_drop_nearly_all_and_all():
    assert (dropped(1000, p=0.9999999) == 0).double().mean() > 0.99
    assert (dropped(1000, p=1.0) == 0).all()
