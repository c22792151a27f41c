"""Every architectural choice of the encoder-decoder, as one frozen, checked value. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TransformerConfig:
    """The encoder-decoder Transformer (Vaswani et al., 2017)."""

    encoder_layers: int = 6
    """Layers of the encoder."""

    decoder_layers: int = 6
    """Layers of the decoder."""

    d_model: int = 512
    """Width of the residual stream."""

    d_ff: int = 2048
    """Inner width of the position-wise feed-forward network."""

    num_heads: int = 8
    """Attention heads; must divide ``d_model``."""

    dropout: float = 0.1
    """Dropout on the sum of embedding and position, and on every sub-layer's output (the paper's two places)."""

    attention_dropout: float = 0.0
    """Dropout on the attention weights."""

    activation_dropout: float = 0.0
    """Dropout inside the feed-forward network, after the activation."""

    norm_order: Literal["post", "pre"] = "pre"
    """``post``: LayerNorm(x + f(x)), as in the paper. ``pre``: x + f(LayerNorm(x)), with one norm more at the end
    (Xiong et al., 2020); trains with higher learning rates and little warm-up."""

    tied_embeddings: Literal["none", "target", "all"] = "all"
    """Which tables are one: ``target``: target embedding and output projection; ``all``: the source embedding too
    (needs a joint vocabulary)."""

    positions: Literal["sinusoidal"] = "sinusoidal"
    """How order enters: ``sinusoidal`` adds the paper's sines and cosines to the embeddings."""

    attention_kernel: Literal["auto", "plain", "fused"] = "auto"
    """``plain``: the formula as written. ``fused``: torch's scaled_dot_product_attention (flash where the device
    has it). ``auto``: fused."""

    def __post_init__(self):
        for name in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must be at least 1")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"model.{name}={getattr(self, name)} must lie in [0, 1)")
        if self.d_model % self.num_heads:
            raise ValueError(f"model.num_heads={self.num_heads} must divide model.d_model={self.d_model}")
        if self.d_model % 2:
            raise ValueError(f"model.d_model={self.d_model} must be even for sinusoidal positions")
