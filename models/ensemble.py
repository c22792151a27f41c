"""Several models as one: a step over their steps, which share a target vocabulary and read the same tokens.

The combined prediction is, by ``rule``, the weighted mean of the models'
  ``probability``      probabilities: what one model thinks possible stays possible;
  ``log_probability``  log-probabilities, normalised again: a token needs the consent of all (a product of experts).
It comes as log-probabilities, which a search takes for logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.rules import IMPOSSIBLE
from models.search import State, Step


class EnsembleState(NamedTuple):
    """Where each of the models stands."""

    states: tuple[State, ...]

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "EnsembleState":
        return EnsembleState(tuple(state.select(rows) for state in self.states))

    def only(self, asked: Int[Tensor, " asked"]) -> "EnsembleState":
        return EnsembleState(tuple(state.only(asked) for state in self.states))


@dataclass(frozen=True)
class Ensemble:
    """:raises ValueError: weights are not as many as the steps, or one of them is not positive."""

    steps: Sequence[Step]

    forbidden_ids: Sequence[int] = ()
    """Tokens that no model is asked about: removed before each model's softmax, as a search removes them."""

    rule: Literal["probability", "log_probability"] = "probability"

    weights: Sequence[float] = ()
    """How much each model counts, in any unit; equally, where nothing is said."""

    def __post_init__(self):
        if self.weights and len(self.weights) != len(self.steps):
            raise ValueError(
                f"{len(self.weights)} weights for an ensemble of {len(self.steps)} models: give one for each"
            )
        if any(weight <= 0 for weight in self.weights):
            raise ValueError(f"weights={list(self.weights)} must be more than 0: leave out a model that does not count")

    def step(
        self, ids: Int[Tensor, "rows 1"], state: EnsembleState
    ) -> tuple[Float[Tensor, "rows vocabulary"], EnsembleState]:
        """Log-probabilities of the next token, and where the models stand then."""
        predicted = [step(ids, each) for step, each in zip(self.steps, state.states, strict=True)]
        forbidden = ids.new_tensor(self.forbidden_ids)
        log_probs = [logits.float().index_fill(-1, forbidden, IMPOSSIBLE).log_softmax(-1) for logits, _ in predicted]
        weights = self.weights or [1.0] * len(log_probs)
        shares = [weight / sum(weights) for weight in weights]
        if self.rule == "probability":
            parts = [each + math.log(share) for each, share in zip(log_probs, shares, strict=True)]
            combined = reduce(torch.logaddexp, parts)
        else:
            combined = sum(each * share for each, share in zip(log_probs, shares, strict=True)).log_softmax(-1)
        return combined, EnsembleState(tuple(each for _, each in predicted))
