"""What makes hypotheses of different length comparable: a score made of the total log-probability and the length.

Totals are sums of log-probabilities, so they are never positive and never rise as a hypothesis goes on. Lengths count
the tokens with the end of sentence. In every normalisation a penalty of 0 is neutral and more favours longer output.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

Scores = float | Float[Tensor, "*#any"]
Lengths = int | Int[Tensor, "*#any"]


@dataclass(frozen=True)
class LengthNormalisation:
    """The plain total, and what the other normalisations share."""

    penalty: float

    def worth(self, total: Scores, length: Lengths) -> Scores:
        """The score of a hypothesis of ``length`` tokens; it grows with ``total``. Tensors broadcast."""
        return total

    def hope(self, total: Scores, length: Lengths, limit: Lengths) -> Scores:
        """The best score that a hypothesis of ``length`` tokens can still reach, if it ends within ``limit`` tokens.

        It gets ``length + 1`` to ``limit`` of them, and at best its total stays as it is. What its length then makes
        of this total, which is not positive, changes in one direction only: it rises to the greatest length under a
        positive penalty, and falls from the least one under a negative penalty. So this is not only a bound: the
        continuation that costs nothing and has that length reaches it. Needs ``length < limit``.
        """
        return self.worth(total, limit if self.penalty > 0 else length + 1)


class Average(LengthNormalisation):
    """total / L**penalty; a penalty of 1 gives the mean log-probability of a token."""

    def worth(self, total: Scores, length: Lengths) -> Scores:
        return total / length**self.penalty


class GNMT(LengthNormalisation):
    """total / ((5 + L) / 6)**penalty (Wu et al., 2016): gentler to short hypotheses."""

    def worth(self, total: Scores, length: Lengths) -> Scores:
        return total / ((5 + length) / 6) ** self.penalty


class WordReward(LengthNormalisation):
    """total + penalty * L (He et al., 2016): every token is worth as much, however long the hypothesis."""

    def worth(self, total: Scores, length: Lengths) -> Scores:
        return total + self.penalty * length


LENGTH_NORMALISATIONS = {"average": Average, "gnmt": GNMT, "none": LengthNormalisation, "word_reward": WordReward}
