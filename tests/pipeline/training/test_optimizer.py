import math

import pytest
import torch
from torch import nn

from pipeline.config import OptimizerConfig
from pipeline.training.optimizer import SCHEDULES, build_optimizer


def rate(step, progress=0.0, d_model=512, **options):
    config = OptimizerConfig(**options)
    return SCHEDULES[config.schedule](config, d_model)(step, progress)


def test_the_inverse_square_root_rises_in_a_line_and_falls_with_the_root():
    expected = {1: 5e-6, 50: 2.5e-4, 100: 5e-4, 400: 2.5e-4, 1600: 1.25e-4}
    found = {s: rate(s, schedule="inverse_sqrt", learning_rate=5e-4, warmup_steps=100) for s in expected}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("step", [1, 4000, 100_000])
def test_noam_is_the_formula_of_the_paper(step):
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert rate(step, schedule="noam", learning_rate=1.0, warmup_steps=4000) == pytest.approx(expected, rel=1e-12)


def test_linear_falls_to_zero_at_the_end_of_training_whatever_ends_it():
    options = dict(schedule="linear", learning_rate=1.0, warmup_steps=10)
    assert rate(5, 0.05, **options) == pytest.approx(0.5)
    assert rate(50, 0.25, **options) == pytest.approx(0.75)
    assert rate(50, 1.0, **options) == 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_lies_at_the_end_of_the_warmup(schedule):
    rates = [rate(step, step / 1000, schedule=schedule, warmup_steps=100) for step in range(1, 1000)]
    assert 90 <= rates.index(max(rates)) + 1 <= 100
    assert all(r > 0 and math.isfinite(r) for r in rates)


def test_only_matrices_decay():
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, OptimizerConfig(name="adamw", learning_rate=0.1, weight_decay=0.5))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(model.weight, before["weight"] * (1 - 0.1 * 0.5))
    torch.testing.assert_close(model.bias, before["bias"], rtol=0, atol=0)


def test_adam_does_not_decay():
    with pytest.raises(ValueError, match=r"optimizer\.weight_decay=0\.1 is AdamW's: set optimizer\.name=adamw"):
        OptimizerConfig(name="adam", weight_decay=0.1)
