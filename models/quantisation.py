"""Linear maps in fewer bits, for translating on a CPU: weights are rounded once, activations as they come.

Eight bits: a row of weights, or of activations, is a scale times whole numbers from -127 to 127 (absmax; Dettmers et
al., 2022). Sums of their products are exact, and what becomes of a row depends on that row alone, whatever else is in
the batch. Everything between the linear maps stays in 32 bits.
"""

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

LARGEST = 127

PIECE = 64
"""Rows of sums that are scaled at a time."""


def quantise(
    x: Float[Tensor, "rows width"],
) -> tuple[Int8[Tensor, "rows width"], Float[Tensor, "rows 1"]]:
    """Whole numbers and scales: their product is ``x``, to within half a scale."""
    scale = x.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).div_(LARGEST)
    return (x / scale).round_().to(torch.int8), scale


class Int8Linear(nn.Module):
    """``F.linear`` by a product of 8-bit whole numbers."""

    def __init__(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, " outer"] | None = None):
        super().__init__()
        weight, scale = quantise(weight.detach().float())
        self.register_buffer("weight", weight.t())  # [inner, outer], each output's weights side by side in memory
        self.register_buffer("scale", scale.t())
        self.register_buffer("bias", bias if bias is None else bias.detach().float())

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        rows, scale = quantise(x.reshape(-1, x.size(-1)))
        sums = torch._int_mm(rows, self.weight)
        y = sums.view(torch.float32)  # in the same memory, and piece by piece: fresh memory costs more than the sums
        for piece in range(0, len(y), PIECE):
            here = slice(piece, piece + PIECE)
            y[here].copy_(sums[here]).mul_(scale[here]).mul_(self.scale)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], -1)


class BFloat16Linear(nn.Module):
    """``F.linear`` by a product in bfloat16, summed in 32 bits and rounded to bfloat16."""

    def __init__(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, " outer"] | None = None):
        super().__init__()
        self.register_buffer("weight", weight.detach().bfloat16())
        self.register_buffer("bias", bias if bias is None else bias.detach().bfloat16())

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        return F.linear(x.bfloat16(), self.weight, self.bias).float()


LINEAR_MAPS: dict[str, Callable[..., nn.Module]] = {"int8": Int8Linear, "bf16": BFloat16Linear}


def with_linear_maps(model: nn.Module, kind: str) -> nn.Module:
    """A copy of the model whose ``nn.Linear`` layers are of ``kind``, for translating only; all else is shared."""
    build = LINEAR_MAPS[kind]
    memo = {id(x): x for x in (*model.parameters(), *model.buffers())}
    converted = copy.deepcopy(model, memo)
    for module in list(converted.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, build(child.weight, child.bias))
    return converted.eval()
