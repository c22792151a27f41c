"""Scaled dot-product attention (Vaswani et al., 2017): softmax(q kᵀ / √K) v; and what every kind of attention has."""

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.cache import ALL_ROWS, KeyValueCache, Rows
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


class Attention(nn.Module):
    """A kind of attention: how queries weigh keys.

    A kind gives ``forward`` and ``weights``. What it remembers of a sequence is by default its keys and values; a kind
    that remembers something else gives the other methods as well.
    """

    def forward(
        self,
        q: Float[Tensor, "batch heads queries dim"],
        k: Float[Tensor, "batch heads keys dim"],
        v: Float[Tensor, "batch heads keys value"],
        mask: Mask,
        bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
        dropout: float = 0.0,
    ) -> Float[Tensor, "batch heads queries value"]:
        """The values, averaged by the weights; ``dropout`` falls on the weights."""
        raise NotImplementedError

    def weights(
        self,
        q: Float[Tensor, "batch heads queries dim"],
        k: Float[Tensor, "batch heads keys dim"],
        mask: Mask,
        bias: Float[Tensor, "#batch #heads #queries #keys"] | None = None,
    ) -> Float[Tensor, "batch heads queries keys"]:
        """How much each query attends to each key; for pictures and alignments, at any cost."""
        raise NotImplementedError

    def remember(
        self, k: Float[Tensor, "batch shared keys dim"], v: Float[Tensor, "batch shared keys value"], mask: Mask
    ) -> Any:
        """What later queries need to know of these keys and values; heads may share them."""
        return KeyValueCache(k, v)

    def start(
        self,
        k: Float[Tensor, "batch shared 0 dim"],
        v: Float[Tensor, "batch shared 0 value"],
        ancestry: Any = None,
    ) -> Any:
        """The past of sequences that have not begun: what ``grow`` is first given. Layers that translate together get
        one ``ancestry`` (``models.beam_attention``)."""
        return self.remember(k, v, Mask())

    def recall(
        self, q: Float[Tensor, "batch heads queries dim"], memory: Any, mask: Mask, dropout: float = 0.0
    ) -> Float[Tensor, "batch heads queries value"]:
        """What the queries read from what ``remember`` returned; ``mask`` is the same."""
        return self(q, *memory.shared_by(q.size(1)), mask, dropout=dropout)

    def grow(
        self,
        q: Float[Tensor, "batch heads new dim"],
        k: Float[Tensor, "batch shared new dim"],
        v: Float[Tensor, "batch shared new value"],
        past: Any,
        mask: Mask,
        score_bias: Callable[[Tensor, int], Tensor | None],
        dropout: float = 0.0,
    ) -> tuple[Float[Tensor, "batch heads new value"], Any]:
        """What the queries read from ``past`` and the new keys and values, and what is remembered of both.

        ``score_bias(q, num_keys)`` gives the bias of the scores, where positions have one.
        """
        past = past.extend(k, v)
        keys, values = past.shared_by(q.size(1))
        y = self(q, keys, values, mask, score_bias(q, keys.size(-2)), dropout)
        return y, past.recent(mask.window, mask.num_global)

    def recall_rows(
        self,
        q: Float[Tensor, "asked heads new dim"],
        memory: Any,
        mask: Mask,
        dropout: float = 0.0,
        rows: Rows = ALL_ROWS,
    ) -> Float[Tensor, "asked heads new value"]:
        """``recall`` where ``memory`` has one row per sentence, which several successive rows (its beams) share: they
        act as the queries of one call instead of copying it."""
        q = rows.spread(q)
        batch, new = memory[0].size(0), q.size(2)
        grouped = q.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)  # [N, H, L, K] -> [B, H, beams * L, K]
        y = self.recall(grouped, memory, mask, dropout)
        return rows.take(y.unflatten(2, (-1, new)).transpose(1, 2).flatten(0, 1))

    def grow_rows(
        self,
        q: Float[Tensor, "asked heads new dim"],
        k: Float[Tensor, "asked shared new dim"],
        v: Float[Tensor, "asked shared new value"],
        past: Any,
        mask: Mask,
        score_bias: Callable[[Tensor, int], Tensor | None],
        dropout: float = 0.0,
        rows: Rows = ALL_ROWS,
    ) -> tuple[Float[Tensor, "asked heads new value"], Any]:
        """``grow`` where ``past`` has all rows."""
        y, past = self.grow(*map(rows.spread, (q, k, v)), past, mask, score_bias, dropout)
        return rows.take(y), past


class DotProductAttention(Attention):
    """Scaled dot-product attention, on a kernel of the signature of ``scaled_dot_product_attention``."""

    def __init__(self, kernel: Callable[..., Tensor] = scaled_dot_product_attention):
        super().__init__()
        self.kernel = kernel

    def forward(self, q, k, v, mask, bias=None, dropout=0.0):
        return self.kernel(q, k, v, mask, bias, dropout)

    def weights(self, q, k, mask, bias=None):
        return attention_weights(q, k, mask, bias)
