"""Additive attention (Bahdanau et al., 2015): softmax of wᵀ tanh(W_q x + W_k y), one vector w for each head.

``MultiHeadAttention`` has the two projections already: here q = W_q x and k = W_k y. The tanh of every query with every
key takes K times the memory of the scores, and training keeps it: B H Lq Lk K numbers in each layer. Computing the
queries in turns would not change that, so this is for sentences, not for long documents.
"""

import torch
import torch.nn.functional as F
from torch import nn

from models.attention import Attention


class AdditiveAttention(Attention):
    """A network of one hidden layer of width K scores each query with each key."""

    def __init__(self, num_heads: int, head_width: int):
        super().__init__()
        bound = (6 / (head_width + 1)) ** 0.5  # Xavier-uniform, of maps from the hidden layer to one number
        self.vectors = nn.Parameter(torch.empty(num_heads, head_width).uniform_(-bound, bound))

    def forward(self, q, k, v, mask, bias=None, dropout=0.0):
        return F.dropout(self.weights(q, k, mask, bias), dropout) @ v

    def weights(self, q, k, mask, bias=None):
        hidden = (q[:, :, :, None] + k[:, :, None]).tanh_()  # [B, H, Lq, 1, K] + [B, H, 1, Lk, K]
        scores = torch.einsum("bhqkd,hd->bhqk", hidden, self.vectors)
        return mask.softmax(scores if bias is None else scores + bias)
