"""Scaled dot-product attention on torch's fused kernels: the function of ``attention.py`` without its weight matrix.

Through a sliding window, long sequences are read in blocks, each of which sees only the keys near it (Beltagy et al.,
2020), so that time and memory grow with the length and not with its square.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from models.masks import Mask


def scaled_dot_product_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """The values, averaged by the attention weights; ``bias`` is added to the scores."""
    if q.is_cpu and q.dtype in (torch.bfloat16, torch.float16):
        # On short sequences a CPU takes nine times as long for the gradient in 16 bits as in 32.
        with torch.autocast("cpu", enabled=False):
            y = scaled_dot_product_attention(
                q.float(), k.float(), v.float(), mask, bias if bias is None else bias.float(), dropout
            )
        return y.to(q.dtype)
    num_queries, num_keys = q.size(-2), k.size(-2)
    if mask.window is None and not (mask.causal and num_queries > 1) and briefly(q, k, dropout):
        return attend_to_keys(q, k, v, mask, bias)
    if bias is None and num_queries == num_keys:
        if mask.window is not None and num_queries >= 4 * (block := max(mask.window, 64)):
            return attend_by_blocks(q, k, v, mask, block, dropout)
        # torch's own causal mask is the fast one, but it aligns the first query with the first key.
        if mask.causal and mask.keys is None and mask.window is None:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    return attend(q, k, v, mask.dense(num_queries, num_keys, q.device), bias, dropout)


def attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    visible: Bool[Tensor, "#batch #heads #queries #keys"] | None,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """Attention to the ``visible`` keys; where there is none, zeros."""
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    # Not every kernel survives a row without visible keys (cuDNN's gradient is NaN for some lengths): it is shown all
    # keys, and what it read there is dropped.
    blind = ~visible.any(dim=-1, keepdim=True)
    visible = visible | blind
    attn_mask = visible if bias is None else bias.masked_fill(~visible, -float("inf"))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout)
    return y * (~blind).to(y.dtype)  # masked_fill takes a CPU five times as long


def briefly(q: Tensor, k: Tensor, dropout: float = 0.0) -> bool:
    """Whether a CPU is quicker without its fused kernel: in decoding, where matrices are many and small."""
    return q.is_cpu and not torch.is_grad_enabled() and not dropout and q.size(-2) * k.size(-2) <= 1 << 12


def attend_briefly(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None,
) -> Float[Tensor, "batch heads queries value"]:
    """The plain formula; ``bias``, -inf for keys that a query may not see, leaves each query one at least."""
    scale = q.size(-1) ** -0.5
    if bias is None:
        scores = (q * scale) @ k.mT
    else:  # in one pass with the product
        scores = bias.to(q.dtype).expand(*q.shape[:-1], -1).clone(memory_format=torch.contiguous_format)
        scores.flatten(0, 1).baddbmm_(q.flatten(0, 1), k.flatten(0, 1).mT, alpha=scale)
    if scores.size(-1) >= 16:
        return scores.softmax(-1) @ v
    # torch's softmax of rows shorter than a vector register takes ten times as long, and so does the exponential
    # where it comes near zero.
    weights = (scores - scores.amax(-1, keepdim=True)).clamp_min_(-80.0).exp_()
    return (weights @ v).div_(weights.sum(-1, keepdim=True))


def attend_to_keys(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None,
) -> Float[Tensor, "batch heads queries value"]:
    """Attention to the keys that are real, wherever they are; where there is none, zeros."""
    if mask.keys is None:
        return attend_briefly(q, k, v, bias)
    y = attend_briefly(q, k, v, mask.bias if bias is None else bias + mask.bias)
    return y if mask.sighted is None else y * mask.sighted


def attend_by_blocks(
    q: Float[Tensor, "batch heads length dim"],
    k: Float[Tensor, "batch heads length dim"],
    v: Float[Tensor, "batch heads length value"],
    mask: Mask,
    block: int,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads length value"]:
    """Attention through a window, over each ``block`` of queries apart: more sentences of a few keys each.

    Causal, window 2, blocks of 3; the keys of a block begin a window before it (and end a window after it, if they may
    be in the future)::

        1 . . . . .             . . 1 . .    of these keys: . . 0 1 2
        1 1 . . . .             . . 1 1 .
        . 1 1 . . .   becomes   . . . 1 1
        . . 1 1 . .             . 1 1 . .    of these keys: 1 2 3 4 5
        . . . 1 1 .             . . 1 1 .
        . . . . 1 1             . . . 1 1

    Global keys are put before those of each block. Global queries are computed apart.
    """
    length, num_global, window = q.size(-2), mask.num_global, mask.window
    num_blocks = -(-length // block)
    missing = num_blocks * block - length
    after = 0 if mask.causal else window
    size = window + block + after

    def near(x: Tensor) -> Tensor:  # [B, H, L, K] -> [B blocks, H, size, K]
        x = F.pad(x, (0, 0, window, missing + after))
        return x.unfold(-2, size, block).mT.transpose(1, 2).flatten(0, 1)

    def everywhere(x: Tensor) -> Tensor:  # [B, H, L, K] -> [B blocks, H, globals, K]
        return x[:, :, :num_global].repeat_interleave(num_blocks, dim=0)

    real = mask.keys if mask.keys is not None else q.new_ones(q.size(0), length, dtype=torch.bool)
    real = real[:, None, :, None]  # [B, 1, L, 1], as if it were keys
    local = torch.cat([torch.zeros_like(real[:, :, :num_global]), real[:, :, num_global:]], dim=2)
    band = Mask(causal=mask.causal, window=window).dense(size, size, q.device)[:, :, window : window + block]
    visible = near(local).mT & band  # [B blocks, 1, block, size]
    if num_global:
        visible = torch.cat([everywhere(real).mT.expand(-1, -1, block, -1), visible], dim=-1)
    keys, values = (torch.cat([everywhere(x), near(x)], dim=-2) if num_global else near(x) for x in (k, v))
    queries = F.pad(q, (0, 0, 0, missing)).unflatten(-2, (num_blocks, block)).transpose(1, 2).flatten(0, 1)
    y = attend(queries, keys, values, visible, dropout=dropout)
    y = y.unflatten(0, (-1, num_blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]
    if not num_global:
        return y
    seen = num_global if mask.causal else length
    keys = None if mask.keys is None else mask.keys[:, :seen]
    first = scaled_dot_product_attention(
        q[:, :, :num_global], k[:, :, :seen], v[:, :, :seen], Mask(keys, mask.causal), dropout=dropout
    )
    return torch.cat([first, y[:, :, num_global:]], dim=2)
