"""Adam and AdamW, and the course of the learning rate as a pure function of where training stands.

A schedule has no state: ``learning_rate(configuration, d_model)(step, progress)`` gives the rate of one update, so that
there is nothing to save, to restore, or to count wrongly.
"""

import math
from collections.abc import Callable

import torch
from torch import nn

from pipeline.config import OptimizerConfig

Schedule = Callable[[int, float], float]
"""(step, progress) -> learning rate. ``step`` counts updates from 1, ``progress`` is the share of the training that
lies behind, in [0, 1]."""


def inverse_sqrt(config: OptimizerConfig, d_model: int) -> Schedule:
    """Up in a line, then down with the square root of the step."""
    return lambda step, progress: (
        config.learning_rate * min(step / config.warmup_steps, math.sqrt(config.warmup_steps / step))
    )


def noam(config: OptimizerConfig, d_model: int) -> Schedule:
    """Vaswani et al. (2017): learning_rate * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)."""
    return lambda step, progress: (
        config.learning_rate * d_model**-0.5 * min(step**-0.5, step * config.warmup_steps**-1.5)
    )


def linear(config: OptimizerConfig, d_model: int) -> Schedule:
    """Up in a line, and down in one that reaches zero at the end of training."""
    return lambda step, progress: config.learning_rate * min(step / config.warmup_steps, 1.0 - progress)


SCHEDULES = {"inverse_sqrt": inverse_sqrt, "noam": noam, "linear": linear}
OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def build_optimizer(model: nn.Module, config: OptimizerConfig, fused: bool = True) -> torch.optim.Optimizer:
    """The optimizer of ``model``; only matrices decay. Its rate is to be set before each update."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return OPTIMIZERS[config.name](
        [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=fused,
    )
