"""Scaled dot-product attention on torch's flex_attention: one kernel, compiled for the mask, that skips hidden blocks.

On CUDA. Elsewhere, and for fewer queries than make a block (a decoding step), it has nothing to gain, and the fused
kernel computes the same.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from models import fused_attention
from models.masks import Mask

BLOCK = 128  # flex_attention's own


def scaled_dot_product_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """The values, averaged by the attention weights; ``bias`` is added to the scores.

    :raises ValueError: for dropout, and on CUDA for 64 bits, neither of which flex_attention has.
    """
    if dropout:
        raise ValueError(f"model.attention_kernel=flex has no dropout, but it is {dropout}: choose fused")
    if q.is_cuda and q.dtype == torch.float64:
        raise ValueError("model.attention_kernel=flex computes in 16 or 32 bits, not in float64: choose fused")
    if not q.is_cuda or q.size(-2) < BLOCK:
        return fused_attention.scaled_dot_product_attention(q, k, v, mask, bias)
    return attend_compiled(q, k, v, mask, bias)


@torch._disable_dynamo  # torch.compiler.disable, without the second that its import takes
def attend_compiled(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None,
) -> Float[Tensor, "batch heads queries value"]:
    """``attend`` on a kernel of its own: as part of a compiled model it would be compiled anew for each length."""
    return attend(q, k, v, mask, bias, compiled_kernel())


@cache
def compiled_kernel() -> Callable[..., Tensor]:
    """``flex_attention`` for tensors of any length, compiled when first called."""
    kernel = torch.compile(flex_attention, dynamic=True)
    # Training and translating, self- and cross-attention, one block or more are compiled apart: together they may pass
    # the limit of eight, past which torch does without compiling.
    torch._dynamo.config.cache_size_limit = max(64, torch._dynamo.config.cache_size_limit)
    return kernel


def attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None,
    kernel: Callable[..., Tensor],
) -> Float[Tensor, "batch heads queries value"]:
    """Attention on ``kernel``, which is ``flex_attention``, compiled or not.

    It is given whole blocks and widths that are powers of two, which suit every version of torch: with others some
    refuse (2.6), or return NaN for gradients (pytorch/pytorch#153799).
    """
    num_queries, num_keys = q.size(-2), k.size(-2)

    def whole(x: Tensor) -> Tensor:
        width = max(16, 2 ** math.ceil(math.log2(x.size(-1))))
        return F.pad(x, (0, width - x.size(-1), 0, -x.size(-2) % BLOCK))

    score_mod = None if bias is None else score_function(bias.expand(-1, -1, num_queries, num_keys))
    blocks = block_mask(mask, q.size(0), num_queries, num_keys, q.device)
    y = kernel(whole(q), whole(k), whole(v), score_mod, blocks, scale=1 / math.sqrt(q.size(-1)))
    return y[:, :, :num_queries, : v.size(-1)]


def score_function(bias: Float[Tensor, "#batch #heads queries keys"]) -> Callable[..., Tensor]:
    """The bias as flex_attention knows it."""
    bias = F.pad(bias, (0, -bias.size(-1) % BLOCK, 0, -bias.size(-2) % BLOCK))
    each_row, each_head = int(bias.size(0) > 1), int(bias.size(1) > 1)  # or one for all
    return lambda score, b, h, query, key: score + bias[b * each_row, h * each_head, query, key]


def block_mask(mask: Mask, batch: int, num_queries: int, num_keys: int, device: torch.device) -> BlockMask:
    """The mask as flex_attention knows it: which blocks of keys a block of queries looks at, and within these, a
    function.

    A query sees a range of keys and the global ones. Made from the ends of these ranges: nothing is as large as queries
    times keys. They are tensors, since the kernel is compiled anew for other numbers.
    """
    query = torch.arange(num_keys - num_queries, num_keys, device=device)  # the last one sits on the last key
    first, end = torch.zeros_like(query), torch.full_like(query, num_keys)
    if mask.window is not None:
        first = torch.where(query < mask.num_global, first, query - mask.window + 1)
        end = torch.where(query < mask.num_global, end, query + mask.window)
    if mask.causal:
        end = query + 1
    first, end = F.pad(first, (0, -num_queries % BLOCK), value=num_keys), F.pad(end, (0, -num_queries % BLOCK))
    keys = torch.ones(batch, num_keys, dtype=torch.bool, device=device) if mask.keys is None else mask.keys
    keys = F.pad(keys, (0, -num_keys % BLOCK))
    everywhere = torch.arange(keys.size(-1), device=device) < mask.num_global

    start = torch.arange(0, keys.size(-1), BLOCK, device=device)
    earliest, latest = first.view(-1, BLOCK).amin(-1), end.view(-1, BLOCK).amax(-1)
    near = (start < latest[:, None]) & ((start + BLOCK > earliest[:, None]) | everywhere[::BLOCK])
    some = near & keys.view(batch, 1, 1, -1, BLOCK).any(-1)  # [B, 1, blocks of queries, blocks of keys]
    return BlockMask.from_kv_blocks(
        some.sum(-1, dtype=torch.int32),
        some.int().argsort(dim=-1, descending=True, stable=True).int(),
        BLOCK_SIZE=BLOCK,
        mask_mod=lambda b, h, query, key: keys[b, key] & (key < end[query]) & ((key >= first[query]) | everywhere[key]),
    )
