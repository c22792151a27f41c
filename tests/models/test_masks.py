"""The matrices a mask stands for, written out; rows are queries, 1 means "may attend"."""

import pytest
import torch
from torch.testing import assert_close

from models.masks import Mask

FULL = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool)
CAUSAL = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)
CAUSAL_WINDOW_2 = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.bool)
WINDOW_2 = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]], dtype=torch.bool)
WINDOW_2_GLOBAL_1 = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=torch.bool)
WINDOW_1_GLOBAL_2 = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
CAUSAL_WINDOW_2_GLOBAL_1 = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
CAUSAL_WINDOW_1_GLOBAL_2 = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
KEYS = torch.tensor([[True, True, True, True], [True, True, False, False]])


@pytest.mark.parametrize(
    "mask, expected",
    [
        (Mask(causal=True), CAUSAL),
        (Mask(causal=True, window=2), CAUSAL_WINDOW_2),
        (Mask(window=2), WINDOW_2),
        (Mask(window=9), FULL),
        (Mask(causal=True, window=9), CAUSAL),
        (Mask(window=2, num_global=1), WINDOW_2_GLOBAL_1),
        (Mask(window=1, num_global=2), WINDOW_1_GLOBAL_2),
        (Mask(window=1, num_global=9), FULL),
        (Mask(causal=True, window=2, num_global=1), CAUSAL_WINDOW_2_GLOBAL_1),
        (Mask(causal=True, window=1, num_global=2), CAUSAL_WINDOW_1_GLOBAL_2),
        (Mask(causal=True, window=1, num_global=9), CAUSAL),
    ],
)
def test_a_mask_is_this_matrix(mask, expected):
    assert_close(mask.dense(4, 4)[0, 0], expected)


@pytest.mark.parametrize("num_queries", [2, 1])
@pytest.mark.parametrize(
    "mask, expected",
    [
        (Mask(causal=True, window=2), CAUSAL_WINDOW_2),
        (Mask(window=2), WINDOW_2),
        (Mask(window=2, num_global=1), WINDOW_2_GLOBAL_1),
        (Mask(causal=True, window=2, num_global=1), CAUSAL_WINDOW_2_GLOBAL_1),
        (Mask(causal=True, window=1, num_global=2), CAUSAL_WINDOW_1_GLOBAL_2),
    ],
)
def test_the_last_query_sits_on_the_last_key(mask, expected, num_queries):
    assert_close(mask.dense(num_queries, 4)[0, 0], expected[-num_queries:])


def test_the_last_of_two_causal_queries_sees_all_keys_and_the_first_all_but_one():
    assert_close(Mask(causal=True).dense(2, 4)[0, 0], CAUSAL[2:])


def test_padding_is_hidden_from_every_query_and_combines_with_causality():
    assert_close(Mask(KEYS).dense(4, 4).expand(2, 1, 4, 4)[1, 0], FULL & KEYS[1])
    assert_close(Mask(KEYS, causal=True).dense(4, 4)[1, 0], CAUSAL & KEYS[1])
    assert_close(Mask(KEYS, causal=True, window=2).dense(4, 4)[:, 0], CAUSAL_WINDOW_2 & KEYS[:, None])
    assert_close(Mask(KEYS, window=2, num_global=1).dense(4, 4)[:, 0], WINDOW_2_GLOBAL_1 & KEYS[:, None])


def test_a_mask_that_hides_nothing_renders_nothing():
    assert Mask().dense(4, 4) is None
    assert Mask(causal=True).dense(1, 4) is None  # a cached step sees all that was said


def test_the_softmax_spreads_one_over_the_visible_keys_and_nothing_over_none():
    keys = torch.tensor([[True, False, True], [False, False, False]])
    weights = Mask(keys).softmax(torch.tensor([[[[0.0, 9.0, 0.0]]], [[[1.0, 2.0, 3.0]]]]))
    assert_close(weights, torch.tensor([[[[0.5, 0.0, 0.5]]], [[[0.0, 0.0, 0.0]]]]))
