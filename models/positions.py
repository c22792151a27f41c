"""How order enters a model that otherwise sees a set.

Absolute schemes add something to the embeddings, once; relative ones take part in every layer's self-attention, where
they turn queries and keys, or add to their scores.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from models.config import ModelConfig


class AbsolutePositions(nn.Module):
    """Adds nothing; the schemes below override ``embed``."""

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        """``x`` with the positions ``start``, ``start + 1``, … added."""
        return x


class Sinusoidal(AbsolutePositions):
    """PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos of the same (Vaswani et al., 2017), added to x.

    Made anew in each pass: any length works, and no stored table loses its precision when a model is cast to bf16.
    """

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        length, width = x.shape[-2:]
        exact = {"dtype": torch.promote_types(x.dtype, torch.float32), "device": x.device}
        position = torch.arange(start, start + length, **exact)[:, None]
        angle = position * 10000 ** (-torch.arange(0, width, 2, **exact) / width)  # [L, D / 2]
        return x + torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(x.dtype)


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


ABSOLUTE_POSITIONS: dict[str, Callable[[ModelConfig], AbsolutePositions]] = {
    "sinusoidal": lambda config: Sinusoidal(),
}
"""One for the source and one for the target; other schemes have none."""

RELATIVE_POSITIONS: dict[str, Callable[[ModelConfig], RelativePositions]] = {}
"""One for each layer's self-attention; other schemes have none."""
