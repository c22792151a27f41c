"""The Transformer's layers: attention and feed-forward, each wrapped in dropout, residual sum and layer norm."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from models import attention, fused_attention
from models.attention import CrossAttention, SelfAttention, projection
from models.cache import KeyValueCache
from models.config import TransformerConfig
from models.dropout import Dropout
from models.masks import Mask

ATTENTION_KERNELS = {
    "auto": fused_attention.scaled_dot_product_attention,
    "fused": fused_attention.scaled_dot_product_attention,
    "plain": attention.scaled_dot_product_attention,
}


class Residual(nn.Module):
    """``post``: LayerNorm(x + f(x)) (Vaswani et al., 2017). ``pre``: x + f(LayerNorm(x)) (Xiong et al., 2020)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.norm_first = config.norm_order == "pre"
        self.norm = nn.LayerNorm(config.d_model)
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
    """The same two-layer network at every position: W₂ max(0, W₁ x + b₁) + b₂."""

    def __init__(self, config: TransformerConfig):
        super().__init__(
            projection(config.d_model, config.d_ff),
            nn.ReLU(),
            Dropout(config.activation_dropout),
            projection(config.d_ff, config.d_model),
        )


def attention_arguments(config: TransformerConfig) -> tuple:
    """What both kinds of attention are built from."""
    kernel = ATTENTION_KERNELS[config.attention_kernel]
    return config.d_model, config.num_heads, kernel, config.attention_dropout


class EncoderLayer(nn.Module):
    """Self-attention over the source, then feed-forward."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.self_attention = SelfAttention(*attention_arguments(config))
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Float[Tensor, "batch source width"], mask: Mask) -> Float[Tensor, "batch source width"]:
        first, second = self.residuals
        x = first(x, lambda x: self.self_attention(x, mask)[0])
        return second(x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention over the target, cross-attention to the source, then feed-forward."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.self_attention = SelfAttention(*attention_arguments(config))
        self.cross_attention = CrossAttention(*attention_arguments(config))
        self.feed_forward = FeedForward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(
        self, x: Float[Tensor, "rows target width"], past: KeyValueCache, memory: KeyValueCache, mask: Mask
    ) -> tuple[Float[Tensor, "rows target width"], KeyValueCache]:
        """The next hidden states, and ``past`` grown by the positions of ``x``."""
        first, second, third = self.residuals
        attended, past = self.self_attention(first.before(x), Mask(causal=True), past)
        x = first.after(x, attended)
        x = second(x, lambda x: self.cross_attention(x, memory, mask))
        return third(x, self.feed_forward), past
