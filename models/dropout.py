"""Dropout (Srivastava et al., 2014) whose random numbers do not slow a CPU down.

torch draws one random number per element on one thread, a tenth of a small model's training step. Here one 64-bit word
decides four elements, 16 bits each: the chance to drop is ``p`` rounded to 1/65536, and what is kept is scaled by
exactly the inverse of its own probability, so the mean is untouched. Elsewhere this is torch's dropout.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

_LANES = 2**16


class Dropout(nn.Dropout):
    """Zeroes each element with probability ``p`` while training and scales the rest up; torch's seed decides which."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        if not self.training:
            return x
        if not x.is_cpu or self.p in (0, 1):
            return super().forward(x)
        return (x * scaled_keep_mask(x, self.p)).to(x.dtype)


def scaled_keep_mask(x: Float[Tensor, "*shape"], p: float) -> Float[Tensor, "*shape"]:
    """0 with probability ``p`` (0 <= p < 1), else the inverse of the chance to be kept, in 32 bits or more."""
    dropped = min(round(p * _LANES), _LANES - 1)  # of the 65536 values a lane can take
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)  # the full range of int64
    lanes = words.view(torch.int16)[: x.numel()].view(x.shape)
    # Comparing straight into floats is three times as fast as a boolean mask and its conversion.
    mask = torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.ge(lanes, dropped - _LANES // 2, out=mask).mul_(_LANES / (_LANES - dropped))
