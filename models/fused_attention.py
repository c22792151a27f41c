"""Scaled dot-product attention on torch's fused kernels: the function of ``attention.py`` without its weight matrix."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
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
    # torch's own causal mask is the fast one, but it aligns the first query with the first key.
    if mask.causal and mask.keys is None and mask.window is None and bias is None and num_queries == num_keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    visible = mask.dense(num_queries, num_keys, q.device)
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    # Not every kernel survives a row without visible keys (cuDNN's gradient is NaN for some lengths): it is shown all
    # keys, and what it read there is dropped.
    blind = ~visible.any(dim=-1, keepdim=True)
    visible = visible | blind
    attn_mask = visible if bias is None else bias.masked_fill(~visible, -float("inf"))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout)
    return y * (~blind).to(y.dtype)  # masked_fill takes a CPU five times as long
