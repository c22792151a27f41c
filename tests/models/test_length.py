"""Length normalisations by their formulas, and the bound that lets a search stop, against every continuation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.length import LENGTH_NORMALISATIONS

FORMULAS = {
    "average": lambda total, length, penalty: total / length**penalty,
    "gnmt": lambda total, length, penalty: total / ((5 + length) / 6) ** penalty,
    "none": lambda total, length, penalty: total,
    "word_reward": lambda total, length, penalty: total + penalty * length,
}
penalties = st.floats(-3, 3)
totals = st.floats(-50, 0)
names = st.sampled_from(sorted(LENGTH_NORMALISATIONS))
property_test = settings(deadline=None, derandomize=True, max_examples=200)


@property_test
@given(names, penalties, totals, st.integers(1, 60))
def test_worth_is_the_formula(name, penalty, total, length):
    normalisation = LENGTH_NORMALISATIONS[name](penalty)
    expected = pytest.approx(FORMULAS[name](total, length, penalty), rel=1e-12)
    assert normalisation.worth(total, length) == expected
    doubles = torch.tensor([total, total], dtype=torch.double)
    assert normalisation.worth(doubles, length).tolist() == [expected, expected]


def test_every_formula_has_a_name():
    assert FORMULAS.keys() == LENGTH_NORMALISATIONS.keys()


@property_test
@given(names, penalties, totals, st.integers(0, 20), st.integers(1, 12))
def test_no_continuation_beats_hope_and_the_best_one_reaches_it(name, penalty, total, length, room):
    normalisation = LENGTH_NORMALISATIONS[name](penalty)
    hope = normalisation.hope(total, length, length + room)
    reachable = [
        normalisation.worth(total * more_costs, end)
        for end in range(length + 1, length + room + 1)
        for more_costs in (1.0, 1.1, 3.0)
    ]
    assert hope == pytest.approx(max(reachable), rel=1e-12, abs=1e-300)


@property_test
@given(names, penalties, totals, totals, st.integers(1, 40))
def test_a_higher_total_is_never_worth_less(name, penalty, one, other, length):
    normalisation = LENGTH_NORMALISATIONS[name](penalty)
    low, high = sorted([one, other])
    assert normalisation.worth(low, length) <= normalisation.worth(high, length)


@pytest.mark.parametrize("name", ["average", "gnmt", "word_reward"])
def test_a_higher_penalty_favours_longer_output_and_none_is_neutral(name):
    make = LENGTH_NORMALISATIONS[name]
    short, long = (-1.5214, 2), (-1.6480, 5)
    assert make(0.0).worth(*short) == short[0] and make(0.0).worth(*long) == long[0]
    for penalty in (0.6, 1.0, 2.0):
        assert make(penalty).worth(*long) > make(penalty).worth(*short)
        assert make(-penalty).worth(*long) < make(-penalty).worth(*short)


def test_worked_numbers():
    assert LENGTH_NORMALISATIONS["average"](1.0).worth(-1.648, 5) == pytest.approx(-0.3296)
    assert LENGTH_NORMALISATIONS["average"](-1.0).worth(-1.5214, 2) == pytest.approx(-3.0428)
    assert LENGTH_NORMALISATIONS["gnmt"](1.0).worth(-3.0, 7) == pytest.approx(-1.5)
    assert LENGTH_NORMALISATIONS["word_reward"](0.5).worth(-3.0, 4) == pytest.approx(-1.0)


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("name", sorted(LENGTH_NORMALISATIONS))
def test_a_batch_of_limits_is_the_sentences_one_by_one(name, penalty):
    normalisation = LENGTH_NORMALISATIONS[name](penalty)
    batch = [-1.0, -4.0, -math.inf]
    together = normalisation.hope(torch.tensor(batch), 3, torch.tensor([4, 9, 30]))
    alone = [normalisation.hope(total, 3, limit) for total, limit in zip(batch, [4, 9, 30], strict=True)]
    assert together.tolist() == pytest.approx(alone, rel=1e-6)
