"""The compiled ranking is a sort of normalised log-probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from models.compiled import BLOCK
from models.ranking import Blocks, CompiledRanking

NOBODY = -1
"""No token comes before its equals: the last one, which is impossible in these tests."""


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.sampled_from([2, BLOCK - 1, BLOCK, 3 * BLOCK, 5 * BLOCK + 7]),
    beams=st.integers(1, 4),
    count=st.integers(1, 12),
    spread=st.sampled_from([0.01, 1.0, 30.0]),
    impossible=st.sampled_from([0.0, 0.5]),
)
def test_it_finds_what_a_sort_finds(seed, width, beams, count, spread, impossible):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(3 * beams, width, generator=generator)
    logits[:, 1:][torch.rand(3 * beams, width - 1, generator=generator) < impossible] = -torch.inf
    logits[:, NOBODY] = -torch.inf
    rows = torch.randint(3 * beams, (3, beams), generator=generator)
    totals = torch.randn(3, beams, generator=generator)
    totals[0, 1:] = -torch.inf
    log_probs = logits.log_softmax(-1)
    found = CompiledRanking.of(logits).best(totals, rows, count, 0, width + NOBODY)
    sums = (totals[:, :, None] + log_probs[rows]).flatten(1)
    expected = sums.sort(1, descending=True).values[:, :count]
    expected = torch.nn.functional.pad(expected, (0, count - expected.size(1)), value=-torch.inf)
    assert_close(found.totals, expected, atol=1e-5, rtol=1e-6)
    places = found.parents * width + found.tokens
    theirs = sums.gather(1, places).where(found.totals > -torch.inf, -torch.inf)
    assert_close(found.totals, theirs, atol=1e-5, rtol=1e-6)
    for of_sentence, scores in zip(places.tolist(), found.totals.tolist(), strict=True):
        real = [place for place, score in zip(of_sentence, scores, strict=True) if score > -torch.inf]
        assert len(set(real)) == len(real)
    others = Blocks.of(log_probs).best(totals, rows, count, 0, width + NOBODY)
    assert_close(found.totals, others.totals, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 80.0, 1e4])
def test_log_sums_are_exact_to_the_last_digits(scale):
    logits = scale * torch.randn(50, 5 * BLOCK + 3, generator=torch.Generator().manual_seed(0))
    expected = logits.double().logsumexp(-1)
    assert_close(CompiledRanking.of(logits).log_sums.double(), expected, atol=2e-6, rtol=3e-7)


def test_of_equals_the_early_one_comes_first_and_then_those_of_earlier_parents():
    logits = torch.zeros(2, BLOCK + 5)
    found = CompiledRanking.of(logits).best(torch.zeros(1, 2), torch.tensor([[1, 0]]), 4, 0, BLOCK + 2)
    assert found.tokens[0, :2].tolist() == [BLOCK + 2, BLOCK + 2]
    assert found.parents.tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("damaged", [torch.nan, torch.inf])
def test_what_is_not_a_number_is_not_hidden(damaged):
    logits = torch.zeros(1, 2 * BLOCK)
    logits[0, 3] = damaged
    found = CompiledRanking.of(logits).best(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.long), 2, 0, 5)
    assert found.totals[0, 0].isnan()
