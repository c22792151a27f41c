"""The Transformer's layers: attention and feed-forward, each wrapped in dropout, residual sum and norm."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from models import attention, flex_attention, fused_attention
from models.additive_attention import AdditiveAttention
from models.attention import Attention, DotProductAttention
from models.beam_attention import BeamAttention
from models.cache import ALL_ROWS, Rows
from models.config import ModelConfig
from models.dropout import Dropout
from models.linear_attention import EluAttention, Performer
from models.masks import Mask
from models.multi_head_attention import CrossAttention, SelfAttention, projection
from models.positions import RELATIVE_POSITIONS, RelativePositions
from models.relative_attention import ShawAttention

ATTENTION_KERNELS = {
    "auto": fused_attention.scaled_dot_product_attention,
    "fused": fused_attention.scaled_dot_product_attention,
    "flex": flex_attention.scaled_dot_product_attention,
    "plain": attention.scaled_dot_product_attention,
}

ATTENTIONS: dict[str, Callable[[ModelConfig], Attention]] = {
    "dot_product": lambda config: dot_product_attention(config),
    "additive": lambda config: AdditiveAttention(config.num_heads, config.head_width),
    "performer": lambda config: Performer(config.head_width, config.random_features),
    "elu": lambda config: EluAttention(),
}


def dot_product_attention(config: ModelConfig) -> DotProductAttention:
    """Decoding keeps a tree, but for the plain formula, its slow twin, and for windows, beyond which they forget."""
    plain = config.attention_kernel == "plain" or config.attention_window
    return (DotProductAttention if plain else BeamAttention)(ATTENTION_KERNELS[config.attention_kernel])


RELATIVE_ATTENTIONS: dict[str, Callable[[ModelConfig], Attention]] = {
    "shaw": lambda config: ShawAttention(config.head_width, config.max_distance),
}
"""Positions that are a kind of self-attention of their own."""

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def self_attention(config: ModelConfig) -> SelfAttention:
    positions = RELATIVE_POSITIONS.get(config.positions, lambda config: RelativePositions())
    attend = RELATIVE_ATTENTIONS.get(config.positions, ATTENTIONS[config.attention])
    return SelfAttention(
        config.d_model,
        config.num_heads,
        config.num_key_value_heads or config.num_heads,
        attend(config),
        positions(config),
        config.attention_dropout,
    )


def cross_attention(config: ModelConfig) -> CrossAttention:
    return CrossAttention(
        config.d_model,
        config.num_heads,
        config.num_key_value_heads or config.num_heads,
        ATTENTIONS[config.attention](config),
        config.attention_dropout,
    )


def self_attention_mask(config: ModelConfig, **visible: Any) -> Mask:
    """What self-attention sees through the configured window."""
    return Mask(window=config.attention_window or None, num_global=config.global_positions, **visible)


class Residual(nn.Module):
    """``post``: norm(x + f(x)) (Vaswani et al., 2017). ``pre``: x + f(norm(x)) (Xiong et al., 2020)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.norm_first = config.norm_order == "pre"
        self.norm = NORMS[config.norm](config.d_model, eps=1e-5)
        self.dropout = Dropout(config.dropout)

    def before(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.norm_first else x

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.dropout(y)
        return x if self.norm_first else self.norm(x)

    def forward(
        self, x: Float[Tensor, "batch length width"], sublayer: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "batch length width"]:
        return self.after(x, sublayer(self.before(x)))


class FeedForward(nn.Sequential):
    """The same two-layer network at every position: W₂ f(W₁ x + b₁) + b₂."""

    def __init__(self, config: ModelConfig, activation: nn.Module):
        super().__init__(
            projection(config.d_model, config.d_ff),
            activation,
            Dropout(config.activation_dropout),
            projection(config.d_ff, config.d_model),
        )


class GatedFeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020): W₂ (silu(W₁ x + b₁) ⊙ (W₃ x + b₃)) + b₂, two thirds as wide and so as large."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width = config.d_ff * 2 // 3
        self.gate_and_value = projection(config.d_model, width, width)
        self.dropout = Dropout(config.activation_dropout)
        self.output = projection(width, config.d_model)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        gate, value = self.gate_and_value(x).chunk(2, dim=-1)
        return self.output(self.dropout(F.silu(gate) * value))


FEED_FORWARDS: dict[str, Callable[[ModelConfig], nn.Module]] = {
    "relu": lambda config: FeedForward(config, nn.ReLU(inplace=True)),
    "gelu": lambda config: FeedForward(config, nn.GELU()),
    "swiglu": GatedFeedForward,
}


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_attention = self_attention(config)
        self.feed_forward = FEED_FORWARDS[config.activation](config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Float[Tensor, "batch source width"], mask: Mask) -> Float[Tensor, "batch source width"]:
        first, second = self.residuals
        x = first(x, lambda x: self.self_attention(x, mask)[0])
        return second(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention over the target, cross-attention to the source, then feed-forward."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.mask = self_attention_mask(config, causal=True)
        self.self_attention = self_attention(config)
        self.cross_attention = cross_attention(config)
        self.feed_forward = FEED_FORWARDS[config.activation](config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self,
        x: Float[Tensor, "asked target width"],
        past: Any,
        start: int,
        memory: Any,
        mask: Mask,
        rows: Rows = ALL_ROWS,
    ) -> tuple[Float[Tensor, "asked target width"], Any]:
        """The next hidden states, and ``past`` grown by the positions of ``x``, the first of which is ``start``."""
        first, second, third = self.residuals
        attended, past = self.self_attention(first.before(x), self.mask, past, start, rows)
        x = first.after(x, attended)
        x = second(x, lambda x: self.cross_attention(x, memory, mask, rows))
        return third(x, self.feed_forward), past
