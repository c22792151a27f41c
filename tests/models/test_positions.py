"""The sinusoids against the paper's formula, element by element."""

import math

import pytest
import torch
from torch.testing import assert_close

from models.positions import Sinusoidal

D = 6


def table(length, start=0, dtype=torch.double):
    return Sinusoidal().embed(torch.zeros(1, length, D, dtype=dtype), start)[0]


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


def test_a_shift_is_a_rotation_that_does_not_depend_on_where_it_starts():
    """PE(p + 1) is a fixed linear function of PE(p)."""
    rows = table(40)
    step = torch.linalg.lstsq(rows[:-1], rows[1:]).solution
    assert_close(rows[:-1] @ step, rows[1:], atol=1e-10, rtol=0)


def test_half_precision_rounds_the_result_and_not_the_position():
    assert_close(table(3, start=1001, dtype=torch.bfloat16), table(3, start=1001).bfloat16(), atol=4e-3, rtol=0)
