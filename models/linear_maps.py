"""Linear maps for translating on a CPU: weights are once put into the form that products are fastest in.

In fewer bits, weights are rounded once, and activations as they come.

Eight bits: a row of weights, or of activations, is a scale times whole numbers from -127 to 127 (absmax; Dettmers et
al., 2022). Sums of their products are exact, and what becomes of a row depends on that row alone, whatever else is in
the batch. Everything between the linear maps stays in 32 bits.
"""

import copy
import platform
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

LARGEST = 127

PIECE = 1 << 18
"""So many sums are scaled at a time: a cache holds them."""


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
        self.rows_at_a_time = max(1, PIECE // len(weight))

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        rows, scale = quantise(x.reshape(-1, x.size(-1)))
        sums = torch._int_mm(rows, self.weight)
        y = sums.view(torch.float32)  # in the same memory, and piece by piece: fresh memory costs more than the sums
        for exact, rounded, row_scale in zip(*(x.split(self.rows_at_a_time) for x in (sums, y, scale)), strict=True):
            rounded.copy_(exact).mul_(row_scale).mul_(self.scale)
        if self.bias is not None:
            y += self.bias
        return y.view(*x.shape[:-1], -1)


PACKED, MANY = 1 << 18, 256
"""Weights, or rows, of a 32-bit product from which on packing wins: a call of oneDNN takes 15 µs more."""


class PackedLinear(nn.Module):
    """``F.linear`` by oneDNN, for which the weights are once put into the order that its kernels read them in. torch's
    own puts many weights in order at each product, which of few rows takes twice as long; of few weights it is the
    quicker one, and of many rows again the slower, by a tenth.

    Products of bfloat16 numbers are summed in 32 bits, and the sums rounded.
    """

    def __init__(
        self,
        weight: Float[Tensor, "outer inner"],
        bias: Float[Tensor, " outer"] | None = None,
        dtype: torch.dtype | None = None,
    ):
        """``dtype``: of the products; None is that of the weights."""
        super().__init__()
        weight = weight.detach().to(dtype)
        self.dtype = weight.dtype
        self.register_buffer("weight", weight)
        self.register_buffer("packed", None)
        self.register_buffer("bias", bias if bias is None else bias.detach().to(dtype))
        self.many = MANY  # rows for which the packed weights are taken
        if packs_weights() and self.dtype in (torch.bfloat16, torch.float32):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            if self.dtype == torch.bfloat16 or weight.numel() >= PACKED:
                self.weight, self.many = None, 0

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        rows = x.to(self.dtype)
        if self.packed is not None and x.shape[:-1].numel() >= self.many:
            y = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        else:
            y = F.linear(rows, self.weight, self.bias)
        return y.to(x.dtype)


def packs_weights() -> bool:
    """Whether torch has oneDNN's kernels for this CPU."""
    return torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")


LINEAR_MAPS: dict[str, Callable[..., nn.Module]] = {
    "32": PackedLinear,
    "bf16": partial(PackedLinear, dtype=torch.bfloat16),
    "int8": Int8Linear,
}


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
