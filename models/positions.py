"""How order enters a model that otherwise sees a set. A scheme is a class here and a name in ``POSITIONS``."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Sinusoidal(nn.Module):
    """PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos of the same (Vaswani et al., 2017), added to x.

    Made anew in each pass: any length works, and no stored table loses its precision when a model is cast to bf16.
    """

    def embed(self, x: Float[Tensor, "batch length width"], start: int = 0) -> Float[Tensor, "batch length width"]:
        """``x`` with the positions ``start``, ``start + 1``, … added."""
        length, width = x.shape[-2:]
        exact = {"dtype": torch.promote_types(x.dtype, torch.float32), "device": x.device}
        position = torch.arange(start, start + length, **exact)[:, None]
        angle = position * 10000 ** (-torch.arange(0, width, 2, **exact) / width)  # [L, D / 2]
        return x + torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2).to(x.dtype)


POSITIONS = {"sinusoidal": Sinusoidal}
