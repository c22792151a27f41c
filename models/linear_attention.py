"""Attention in linear time (Katharopoulos et al., 2020): for exp(q·k / √K), a product of positive features φ(q)·φ(k).

    y = Σ φ(q)·φ(k) v / Σ φ(q)·φ(k) = φ(q) Σ φ(k) vᵀ / φ(q) Σ φ(k)

The sums on the right are all there is to know of the keys, however many they were. A causal pass carries them from one
chunk of positions to the next and looks at single keys only within a chunk; a decoding step is a chunk of one.

Features differ by many orders of magnitude, so they are kept as logarithms. Each feature of the sums is scaled by its
own largest key, as in online softmax, and each query by its own largest feature: nothing overflows, some term of each
denominator is 1, and the scales cancel exactly. All this is done in 32 bits or more, whatever the model's type.
"""

import math
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.attention import Attention
from models.cache import share_heads
from models.masks import Mask

CHUNK = 128
"""Positions of a causal pass whose keys are looked at one by one: as many as make the scores as large as the sums."""


class LinearState(NamedTuple):
    """What is known of the keys and values seen, for each of the H heads that keys and values have.

    Before the first key there are no features (M = 0), so that nothing is computed of them.
    """

    sums: Float[Tensor, "rows heads features value_and_one"]
    """Σ φ(k) [v 1]ᵀ, [N, H, M, V + 1]: the values by their features, and the features; scaled by exp(-shift)."""

    shift: Float[Tensor, "rows heads features"]
    """The largest log φ(k) seen of each feature."""

    def extend(self, new: "LinearState") -> "LinearState":
        """These keys, and then those."""
        if not self.shift.size(-1):
            return new
        shift = torch.maximum(self.shift, new.shift)
        old_scale, new_scale = ((x - shift).exp()[..., None] for x in (self.shift, new.shift))
        return LinearState(old_scale * self.sums + new_scale * new.sums, shift)

    def read(
        self, log_q: Float[Tensor, "rows query_heads queries features"]
    ) -> tuple[Float[Tensor, "rows query_heads queries value"], Float[Tensor, "rows query_heads queries 1"]]:
        """The average value for each query, and log Σ φ(q)·φ(k); where no key was seen, zero and next to nothing."""
        log_terms = grouped(log_q, self.shift.size(1)) + self.shift[..., None, :]
        top = log_terms.detach().amax(-1, keepdim=True)
        sums = (log_terms - top).exp() @ self.sums
        total = sums[..., -1:].clamp_min(0.5)  # it is 0 without a key, and otherwise 1 or more
        y, log_total = sums[..., :-1] / total, total.log() + top
        return y.reshape(*log_q.shape[:-1], -1), log_total.reshape(*log_q.shape[:-1], 1)

    def select(self, rows: Int[Tensor, "*kept"]) -> "LinearState":
        return LinearState(*(x.index_select(0, rows.flatten()) for x in self))


class LinearAttention(Attention):
    """Attention by the features that a subclass gives, as logarithms; heads that share keys share their sums too."""

    def log_features(self, x: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "batch heads length features"]:
        """log φ(x), of queries and keys."""
        raise NotImplementedError

    def forward(self, q, k, v, mask, bias=None, dropout=0.0):
        if not mask.causal:
            refuse(mask, bias, dropout)
            return self.recall(q, self.remember(k, v, mask), mask)
        before = k.size(-2) - q.size(-2)  # keys before the first query
        past = self.remember(
            k[:, :, :before], v[:, :, :before], Mask(None if mask.keys is None else mask.keys[:, :before])
        )
        return self.grow(q, k[:, :, before:], v[:, :, before:], past, mask, lambda *_: bias, dropout)[0]

    def weights(self, q, k, mask, bias=None):
        refuse(mask, bias)
        with torch.autocast(q.device.type, enabled=False):
            return mask.softmax(log_kernel(self.log_features(exact(q)), self.log_features(exact(k)))).to(q.dtype)

    def remember(
        self, k: Float[Tensor, "batch shared keys dim"], v: Float[Tensor, "batch shared keys value"], mask: Mask
    ) -> LinearState:
        refuse(mask)
        with torch.autocast(k.device.type, enabled=False):
            return summed(self.log_features(exact(k)), exact(v), mask.keys)

    def recall(
        self, q: Float[Tensor, "batch heads queries dim"], memory: LinearState, mask: Mask, dropout: float = 0.0
    ) -> Float[Tensor, "batch heads queries value"]:
        refuse(mask, dropout=dropout)
        with torch.autocast(q.device.type, enabled=False):
            return memory.read(self.log_features(exact(q)))[0].to(q.dtype)

    def grow(
        self,
        q: Float[Tensor, "batch heads new dim"],
        k: Float[Tensor, "batch shared new dim"],
        v: Float[Tensor, "batch shared new value"],
        past: LinearState,
        mask: Mask,
        score_bias: Callable[[Tensor, int], Tensor | None],
        dropout: float = 0.0,
    ) -> tuple[Float[Tensor, "batch heads new value"], LinearState]:
        refuse(mask, score_bias(q, k.size(-2)), dropout)
        keys = None if mask.keys is None else mask.keys[:, mask.keys.size(1) - k.size(-2) :]
        if not mask.causal:
            past = past.extend(self.remember(k, v, Mask(keys)))
            return self.recall(q, past, mask), past
        outputs = []
        with torch.autocast(q.device.type, enabled=False):
            # Split rather than sliced: the gradient of a slice is as long as the whole.
            log_q, log_k, v = self.log_features(exact(q)), self.log_features(exact(k)), exact(v)
            chunks = (x.split(CHUNK, dim=-2) for x in (log_q, log_k, v))
            chunks_of_keys = repeat(None) if keys is None else keys.split(CHUNK, dim=-1)
            for log_q, log_k, v, keys in zip(*chunks, chunks_of_keys, strict=False):
                outputs.append(attended(log_q, log_k, v, keys, past))
                past = past.extend(summed(log_k, v, keys))
            return torch.cat(outputs, dim=-2).to(q.dtype), past


class Performer(LinearAttention):
    """FAVOR+ (Choromanski et al., 2021): positive orthogonal random features; φ(q)·φ(k) has the mean exp(q·k / √K).

    φ(x) = exp(W x̂ - |x̂|² / 2) / √M with x̂ = x / ⁴√K. The M rows of W are drawn once, from torch's global generator,
    and belong to the weights; all heads of a layer share them.
    """

    def __init__(self, head_width: int, num_features: int):
        super().__init__()
        self.register_buffer("directions", orthogonal_gaussians(num_features, head_width))

    def log_features(self, x):
        num_features, width = self.directions.shape
        x = x / width**0.25
        # With √M, one number for each position.
        norm = (x.square().sum(-1, keepdim=True) + math.log(num_features)) / 2
        return x @ self.directions.mT.to(x.dtype) - norm


class EluAttention(LinearAttention):
    """φ(x) = elu(x) + 1 (Katharopoulos et al., 2020): eˣ below zero, x + 1 above."""

    def log_features(self, x):
        return torch.where(x > 0, x.relu().log1p(), x)


def orthogonal_gaussians(num_rows: int, width: int) -> Float[Tensor, "rows width"]:
    """Standard normal vectors of which each block of ``width`` is orthogonal: directions of random rotations, with the
    lengths of independent vectors (chi-distributed)."""
    blocks = [nn.init.orthogonal_(torch.empty(width, width)) for _ in range(math.ceil(num_rows / width))]
    return torch.cat(blocks)[:num_rows] * torch.randn(num_rows, width).norm(dim=-1, keepdim=True)


def exact(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def grouped(x: Tensor, num_shared: int) -> Tensor:
    """The queries of heads that share their keys, one head after the other as queries of one."""
    return x.reshape(x.size(0), num_shared, -1, x.size(-1))  # [B, H, L, M] -> [B, shared, H / shared * L, M]


def summed(log_k: Tensor, v: Tensor, keys: Tensor | None) -> LinearState:
    """The sums over the visible keys."""
    if not log_k.size(-2):
        return LinearState(v.new_zeros(*v.shape[:2], 0, v.size(-1) + 1), v.new_zeros(*v.shape[:2], 0))
    if keys is not None:
        log_k = log_k.masked_fill(~keys[:, None, :, None], -math.inf)
    # Where all is hidden, a shift that is finite, even with a query's features added.
    shift = log_k.detach().amax(-2).clamp_min(torch.finfo(log_k.dtype).min / 4)
    return LinearState((log_k - shift[..., None, :]).exp().mT @ F.pad(v, (0, 1), value=1.0), shift)


def log_kernel(log_q: Tensor, log_k: Tensor) -> Tensor:
    """log φ(q)·φ(k), [B, H, Lq, Lk]: what the scores are to a softmax."""
    queries = grouped(log_q, log_k.size(1))
    q_top, k_top = (x.detach().amax(-1, keepdim=True) for x in (queries, log_k))
    kernel = (queries - q_top).exp() @ (log_k - k_top).exp().mT
    # A query and a key that have no feature in common still have a logarithm, and one whose gradient is finite.
    kernel = kernel.clamp_min(torch.finfo(kernel.dtype).tiny ** 0.75)
    return (kernel.log() + k_top.mT + q_top).reshape(*log_q.shape[:-1], -1)


def attended(log_q: Tensor, log_k: Tensor, v: Tensor, keys: Tensor | None, past: LinearState) -> Tensor:
    """What the queries of one chunk read from ``past`` and from the positions up to their own."""
    scores = log_kernel(log_q, log_k)
    v = share_heads(v, log_q.size(1))
    if not past.shift.size(-1):
        return Mask(keys, causal=True).softmax(scores) @ v
    # The past is one more key before the others, whose value depends on the query.
    past_value, past_score = past.read(log_q)
    keys = None if keys is None else F.pad(keys, (1, 0), value=True)
    weights = Mask(keys, causal=True).softmax(torch.cat([past_score, scores], dim=-1))
    return weights[..., :1] * past_value + weights[..., 1:] @ v


def refuse(mask: Mask, bias: Tensor | None = None, dropout: float = 0.0) -> None:
    """:raises ValueError: at what needs the weight of each single key."""
    if mask.window is not None:
        raise ValueError("linear attention sees all keys or none: set model.attention_window=0")
    if bias is not None:
        raise ValueError("linear attention has no scores to add a bias to: set model.positions=sinusoidal")
    if dropout:
        raise ValueError("linear attention has no weights to drop: set model.attention_dropout=0")
