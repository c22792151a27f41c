"""Scaled dot-product attention (Vaswani et al., 2017): softmax(q kᵀ / √K) v, and its multi-head form."""

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.cache import KeyValueCache
from models.masks import Mask


def attention_weights(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
) -> Float[Tensor, "batch heads queries keys"]:
    """How much each query attends to each key; every row sums to one, or to zero where it sees no key."""
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)  # scaled before the sum, which fp16 may not hold
    return mask.softmax(scores if bias is None else scores + bias)


def scaled_dot_product_attention(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch heads keys dim"],
    v: Float[Tensor, "batch heads keys value"],
    mask: Mask,
    bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads queries value"]:
    """The values, averaged by the attention weights; ``bias`` is added to the scores."""
    return F.dropout(attention_weights(q, k, mask, bias), dropout) @ v


def projection(inner: int, outer: int, blocks: int = 1, gain: float = 1.0) -> nn.Linear:
    """A linear map, Xavier-uniform and without bias at first; ``blocks`` maps side by side start as if apart."""
    linear = nn.Linear(inner, outer)
    for block in linear.weight.chunk(blocks):
        nn.init.xavier_uniform_(block, gain)
    nn.init.zeros_(linear.bias)
    return linear


# Queries, keys and values start as in torch's and fairseq's joint [3 D, D] matrix, for attention that is soft at first.
SOFT = 2**-0.5


class MultiHeadAttention(nn.Module):
    """What self- and cross-attention share: heads side by side, each with its own weights, mixed by a last projection.

    ``attend`` is any function of the signature of ``scaled_dot_product_attention``; ``dropout`` acts on the weights.
    """

    def __init__(self, d_model: int, num_heads: int, attend: Callable[..., Tensor], dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.attend = attend
        self.dropout = dropout
        self.output = projection(d_model, d_model)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B, L, D] -> [B, H, L, K]

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        heads = self.attend(q, k, v, mask, dropout=self.dropout if self.training else 0.0)
        return self.output(heads.transpose(1, 2).flatten(-2))  # [B, H, L, K] -> [B, L, D]


class SelfAttention(MultiHeadAttention):
    """Every position reads the positions of its own sequence. One product makes queries, keys and values."""

    def __init__(self, d_model: int, num_heads: int, attend: Callable[..., Tensor], dropout: float = 0.0):
        super().__init__(d_model, num_heads, attend, dropout)
        self.query_key_value = projection(d_model, 3 * d_model, blocks=3, gain=SOFT)

    def forward(
        self, x: Float[Tensor, "batch length width"], mask: Mask, past: KeyValueCache | None = None
    ) -> tuple[Float[Tensor, "batch length width"], KeyValueCache]:
        """Attends over ``past`` and ``x``; also returns the keys and values of both, the past of the next step."""
        q, k, v = map(self.split, self.query_key_value(x).chunk(3, dim=-1))
        cache = KeyValueCache(k, v) if past is None else past.extend(k, v)
        return self.mix(q, cache.keys, cache.values, mask), cache


class CrossAttention(MultiHeadAttention):
    """Every position reads another sequence, whose keys and values are computed once."""

    def __init__(self, d_model: int, num_heads: int, attend: Callable[..., Tensor], dropout: float = 0.0):
        super().__init__(d_model, num_heads, attend, dropout)
        self.query = projection(d_model, d_model, gain=SOFT)
        self.key_value = projection(d_model, 2 * d_model, blocks=2, gain=SOFT)

    def read(self, states: Float[Tensor, "batch source width"]) -> KeyValueCache:
        """The keys and values of a sequence to attend to."""
        return KeyValueCache(*map(self.split, self.key_value(states).chunk(2, dim=-1)))

    def forward(
        self, x: Float[Tensor, "rows length width"], memory: KeyValueCache, mask: Mask
    ) -> Float[Tensor, "rows length width"]:
        """``memory`` has one row per sentence; several successive rows of ``x`` (its beams) may share one, and then
        act as the queries of one call instead of copying it."""
        grouped = self.query(x).reshape(memory.keys.size(0), -1, x.size(-1))  # [N, L, D] -> [B, beams * L, D]
        return self.mix(self.split(grouped), memory.keys, memory.values, mask).view_as(x)
