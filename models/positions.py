"""How order enters a model that otherwise sees a set.

Absolute schemes add something to the embeddings, once; relative ones take part in every layer's self-attention, where
they turn queries and keys, or add to their scores. What a formula gives is computed anew in each pass, in 32 bits or
more: any length works, and no stored table loses its precision when a model is cast to bf16.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from models.config import ModelConfig


class AbsolutePositions(nn.Module):
    """Adds nothing; the schemes below override ``embed``."""

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        """``x`` with the positions ``start``, ``start + 1``, … added."""
        return x


def exact(x: Tensor) -> dict[str, Any]:
    """Where, and how precisely, to compute what is to meet ``x``."""
    return {"dtype": torch.promote_types(x.dtype, torch.float32), "device": x.device}


def angles(x: Float[Tensor, "*batch length width"], start: int) -> Float[Tensor, "length half"]:
    """p / 10000^(2i/D) for the positions p = ``start``, ``start + 1``, … of ``x`` and each pair i of its width D."""
    length, width = x.shape[-2:]
    position = torch.arange(start, start + length, **exact(x))[:, None]
    return position * 10000 ** (-torch.arange(0, width, 2, **exact(x)) / width)


class Sinusoidal(AbsolutePositions):
    """PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos of the same (Vaswani et al., 2017), added to x."""

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        angle = angles(x, start)
        return x + torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(x.dtype)


class Learned(AbsolutePositions):
    """A learned vector for each of ``max_positions`` positions (Gehring et al., 2017), added to x."""

    def __init__(self, max_positions: int, width: int):
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_positions, width) * width**-0.5)

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        """:raises ValueError: for a position that the table does not have."""
        end, known = start + x.size(1), self.table.size(0)
        if end > known:
            raise ValueError(
                f"{end} tokens are more than the model.max_positions={known} that the model has learned: give it "
                "shorter input (lower search.max_source_tokens), or train it with more positions"
            )
        return x + self.table[start:end]


class RelativePositions(nn.Module):
    """Changes nothing; the schemes below override one of the two."""

    def rotate(
        self, q: Float[Tensor, "batch heads length dim"], k: Float[Tensor, "batch shared length dim"], start: int = 0
    ) -> tuple[Float[Tensor, "batch heads length dim"], Float[Tensor, "batch shared length dim"]]:
        """Queries and keys as they stand at the positions ``start``, ``start + 1``, …"""
        return q, k

    def score_bias(
        self, q: Float[Tensor, "batch heads queries dim"], num_keys: int
    ) -> Float[Tensor, "#batch #heads queries keys"] | None:
        """What is added to the scores; the last query sits on the last key."""
        return None


class Rotary(RelativePositions):
    """Queries and keys turned by angles that grow with their position (Su et al., 2021): q·k knows the distance alone.

    Entries 2i and 2i+1 form a pair, as in the paper, and turn by p / 10000^(2i/K).
    """

    def rotate(
        self, q: Float[Tensor, "batch heads length dim"], k: Float[Tensor, "batch shared length dim"], start: int = 0
    ) -> tuple[Float[Tensor, "batch heads length dim"], Float[Tensor, "batch shared length dim"]]:
        angle = angles(q, start)
        return turn(q, angle), turn(k, angle)


def turn(
    x: Float[Tensor, "batch heads length dim"], angle: Float[Tensor, "length half"]
) -> Float[Tensor, "batch heads length dim"]:
    """Each pair (a, b) of x, as (a cos - b sin, a sin + b cos)."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    sin, cos = angle.sin(), angle.cos()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)


class Alibi(RelativePositions):
    """Scores lowered by slope · distance, each head with a slope of its own (Press et al., 2022).

    The slopes are 2^(-8h/H) for h = 1 … H, where H is a power of two. Further heads take the geometric means between
    them, the steepest first, as in the paper's code. An encoder's distances count to either side.
    """

    def __init__(self, num_heads: int):
        super().__init__()
        self.num_heads = num_heads

    def slopes(self, like: Tensor) -> Float[Tensor, " heads"]:
        power = 2 ** (self.num_heads.bit_length() - 1)
        h = torch.arange(1, self.num_heads + 1, **exact(like))
        return 2 ** (-8 / power * torch.where(h <= power, h, h - power - 0.5))

    def score_bias(
        self, q: Float[Tensor, "batch heads queries dim"], num_keys: int
    ) -> Float[Tensor, "#batch #heads queries keys"]:
        key = torch.arange(num_keys, **exact(q))
        distance = (key[num_keys - q.size(-2) :, None] - key).abs()  # [Lq, Lk]
        return (-self.slopes(q)[:, None, None] * distance)[None].to(q.dtype)


ABSOLUTE_POSITIONS: dict[str, Callable[[ModelConfig], AbsolutePositions]] = {
    "sinusoidal": lambda config: Sinusoidal(),
    "learned": lambda config: Learned(config.max_positions, config.d_model),
}
"""One for the source and one for the target; other schemes have none."""

RELATIVE_POSITIONS: dict[str, Callable[[ModelConfig], RelativePositions]] = {
    "rotary": lambda config: Rotary(),
    "alibi": lambda config: Alibi(config.num_heads),
}
"""One for each layer's self-attention; other schemes have none. (Shaw's is a kind of attention of its own.)"""
