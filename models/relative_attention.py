"""Attention with learned vectors for relative positions (Shaw et al., 2018).

A query at i meets a key at j as k_j + a^K and reads it as v_j + a^V, with vectors a of their own for every distance
j - i, which counts no further than ``max_distance`` to either side (the paper's equations 3 to 5). Without a tensor
[Lq, Lk, K]: what depends on distance is computed once for each query and distance, and moved to its key::

    distance  -3 -2 -1  0  1  2              key  0  1  2
    query 0    .  .  .  a  b  c         query 0   a  b  c
    query 1    .  .  d  e  f  .    =    query 1   d  e  f
    query 2    .  g  h  i  .  .         query 2   g  h  i

Products and views alone, so gradients are the same in every run, on a GPU too.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models.attention import Attention, attention_weights


def by_key(x: Float[Tensor, "*heads queries distances"]) -> Float[Tensor, "*heads queries keys"]:
    """The right form of the drawing from the left one, whose Lq + Lk distances begin at -Lk; the last query sits on
    the last key."""
    queries, distances = x.shape[-2:]
    # In a row that is one shorter than the distances, every query's keys begin at the same place.
    rows = x.flatten(-2)[..., queries:].unflatten(-1, (queries, distances - 1))
    return rows[..., : distances - queries]


def by_distance(x: Float[Tensor, "*heads queries keys"]) -> Float[Tensor, "*heads queries distances"]:
    """The left form of the drawing from the right one, with zeros where there is no key."""
    queries, keys = x.shape[-2:]
    rows = F.pad(x, (0, queries - 1)).flatten(-2)
    return F.pad(rows, (queries, 0)).unflatten(-1, (queries, queries + keys))


class ShawAttention(Attention):
    """Scaled dot-product attention that knows how far every key is from the query; all heads share one table."""

    def __init__(self, head_width: int, max_distance: int):
        super().__init__()
        self.max_distance = max_distance
        self.keys = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        self.values = nn.Parameter(torch.empty(2 * max_distance + 1, head_width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def forward(self, q, k, v, mask, bias=None, dropout=0.0):
        weights = F.dropout(self.weights(q, k, mask, bias), dropout)
        per_vector = by_distance(weights) @ self.vector_of_distance(q, k)  # [B, H, Lq, 2 max_distance + 1]
        return weights @ v + per_vector @ self.values

    def weights(self, q, k, mask, bias=None):
        per_vector = (q / math.sqrt(q.size(-1))) @ self.keys.T
        relative = by_key(per_vector @ self.vector_of_distance(q, k).T)
        return attention_weights(q, k, mask, relative if bias is None else relative + bias)

    def vector_of_distance(self, q: Tensor, k: Tensor) -> Float[Tensor, "distances vectors"]:
        """1 where a distance takes a vector, else 0: all beyond ``max_distance`` take the outermost ones."""
        distance = torch.arange(-k.size(-2), q.size(-2), device=q.device)[:, None]
        reach = self.max_distance
        return (distance.clamp(-reach, reach) == torch.arange(-reach, reach + 1, device=q.device)).to(q.dtype)
