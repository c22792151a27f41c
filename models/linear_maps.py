"""Linear maps for translating on a CPU: weights are once put into the form that products are fastest in.

In fewer bits, weights are rounded once, and activations as they come.

Eight bits: a row of weights, or of activations, is a scale times whole numbers from -127 to 127 (absmax; Dettmers et
al., 2022). Sums of their products are exact, and what becomes of a row depends on that row alone, whatever else is in
the batch. Everything between the linear maps stays in 32 bits. A CPU without instructions for such sums (VNNI) takes
two products at a time in 16 bits, which have room for them where activations are from -63 to 63.
"""

import copy
import platform
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

LARGEST = 127

NARROW, SHIFT = 63, 64
"""Activations from -63 to 63 are shifted to be from 1 to 127: two products of 127 · 127 fit into 16 bits."""

PIECE = 1 << 18
"""So many sums are scaled at a time: a cache holds them."""


def quantise(
    x: Float[Tensor, "rows width"], largest: int = LARGEST
) -> tuple[Int8[Tensor, "rows width"], Float[Tensor, "rows 1"]]:
    """Whole numbers and scales: their product is ``x``, to within half a scale."""
    scale = x.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).div_(largest)
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


class NarrowInt8Linear(nn.Module):
    """``F.linear`` by a product of whole numbers of 8 bits and of 7, by oneDNN, for CPUs without VNNI: there
    ``torch._int_mm`` goes number by number, and of 8 bits each the sums of two products would be cut off."""

    def __init__(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, " outer"] | None = None):
        super().__init__()
        weight, scale = quantise(weight.detach().float())
        self.register_buffer("weight", torch.ops.onednn.qlinear_prepack(weight, None))
        self.register_buffer("scale", scale[:, 0])
        self.register_buffer("zero", torch.zeros(len(weight), dtype=torch.long))
        self.register_buffer("bias", bias if bias is None else bias.detach().float())

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        rows, row_scale = quantise(x.reshape(-1, x.size(-1)), NARROW)
        shifted = 1.0, SHIFT  # scale and zero of the activations
        weight, unchanged = (self.weight, self.scale, self.zero), (1.0, 0, torch.float32, "none", [], "")
        y = torch.ops.onednn.qlinear_pointwise(rows.add_(SHIFT).view(torch.uint8), *shifted, *weight, None, *unchanged)
        y *= row_scale
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
        packs = packs_weights()
        # Rounded numbers in 32 bits have the same products.
        self.product_dtype = torch.float32 if packs and not multiplies(self.dtype) else self.dtype
        weight = weight.to(self.product_dtype)
        self.register_buffer("weight", weight)
        self.register_buffer("packed", None)
        self.register_buffer("bias", bias if bias is None else bias.detach().to(self.dtype).to(self.product_dtype))
        self.many = MANY  # rows for which the packed weights are taken
        if packs and self.product_dtype in (torch.bfloat16, torch.float32):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            if self.dtype == torch.bfloat16 or weight.numel() >= PACKED:
                self.weight, self.many = None, 0

    def forward(self, x: Float[Tensor, "*batch inner"]) -> Float[Tensor, "*batch outer"]:
        if self.dtype == self.product_dtype == x.dtype:
            return self.product(x)
        y = self.product(x.to(self.dtype).to(self.product_dtype))
        return y.to(self.dtype).to(x.dtype)

    def product(self, x: Tensor) -> Tensor:
        if self.packed is not None and x.shape[:-1].numel() >= self.many:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def packs_weights() -> bool:
    """Whether torch has oneDNN's kernels for this CPU."""
    return torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")


def multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN's kernels multiply such numbers on this CPU."""
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


@cache
def cuts_sums() -> bool:
    """Whether oneDNN's sums of two products of 8 bits have but 16 bits: seen in the greatest such sum."""
    if not packs_weights():
        return False
    greatest = torch.full((16, 64), LARGEST, dtype=torch.int8)
    weight = torch.ops.onednn.qlinear_prepack(greatest, None), torch.ones(16), torch.zeros(16, dtype=torch.long)
    rows, unchanged = torch.full((16, 64), 255, dtype=torch.uint8), (1.0, 0, torch.float32, "none", [], "")
    sums = torch.ops.onednn.qlinear_pointwise(rows, 1.0, 0, *weight, None, *unchanged)
    return bool((sums != 64 * 255 * LARGEST).any())


def int8_linear(weight: Float[Tensor, "outer inner"], bias: Float[Tensor, " outer"] | None = None) -> nn.Module:
    return (NarrowInt8Linear if cuts_sums() else Int8Linear)(weight, bias)


LINEAR_MAPS: dict[str, Callable[..., nn.Module]] = {
    "32": PackedLinear,
    "bf16": partial(PackedLinear, dtype=torch.bfloat16),
    "int8": int8_linear,
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
