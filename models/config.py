"""Every architectural choice of the encoder-decoder, as one frozen, checked value. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ModelConfig:
    """The encoder-decoder: a Transformer (Vaswani et al., 2017), or the recurrent one that it displaced."""

    architecture: Literal["transformer", "recurrent"] = "transformer"
    """``transformer``, or ``recurrent``: LSTMs (Sutskever et al., 2014), which take dot_product or additive attention,
    or none. Feed-forward networks, norms, positions and windows are the Transformer's: here they are refused, but for
    ``d_ff``, which means nothing."""

    encoder_layers: int = 6
    """Layers of the encoder."""

    decoder_layers: int = 6
    """Layers of the decoder."""

    d_model: int = 512
    """Width of the residual stream, or of the LSTMs."""

    d_ff: int = 2048
    """Inner width of the position-wise feed-forward network; ``swiglu``, with three matrices instead of two, takes two
    thirds of it."""

    num_heads: int = 8
    """Attention heads; must divide ``d_model``."""

    num_key_value_heads: int = 0
    """Grouped-query attention (Ainslie et al., 2023): heads that keys and values have, each shared by equally many
    query heads; must divide ``num_heads``. 0: as many as ``num_heads``."""

    dropout: float = 0.1
    """Dropout on the sum of embedding and position, and on every sub-layer's output (the paper's two places)."""

    attention_dropout: float = 0.0
    """Dropout on the attention weights."""

    activation_dropout: float = 0.0
    """Dropout inside the feed-forward network, after the activation."""

    norm_order: Literal["post", "pre"] = "pre"
    """``post``: norm(x + f(x)), as in the paper. ``pre``: x + f(norm(x)), with one norm more at the end
    (Xiong et al., 2020); trains with higher learning rates and little warm-up."""

    norm: Literal["layer", "rms"] = "layer"
    """LayerNorm (Ba et al., 2016), or RMSNorm (Zhang and Sennrich, 2019), which neither centres nor shifts."""

    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """In the feed-forward network: the paper's ReLU, GELU (Hendrycks and Gimpel, 2016), or a gate (Shazeer, 2020)."""

    tied_embeddings: Literal["none", "target", "all"] = "all"
    """Which tables are one: ``target``: target embedding and output projection; ``all``: the source embedding too
    (needs a joint vocabulary)."""

    positions: Literal["sinusoidal", "learned", "rotary", "shaw", "alibi", "none"] = "sinusoidal"
    """How order enters. ``sinusoidal``, ``learned`` (Gehring et al., 2017): vectors added to the embeddings.
    ``rotary`` (Su et al., 2021): queries and keys turned by their position. ``shaw`` (Shaw et al., 2018): vectors for
    relative positions, added to keys and values. ``alibi`` (Press et al., 2022): scores lowered with distance."""

    max_positions: int = 1024
    """``learned``: positions that there are; longer input is refused."""

    max_distance: int = 16
    """``shaw``: how far relative positions are told apart."""

    attention: Literal["dot_product", "additive", "performer", "elu", "none"] = "dot_product"
    """How queries weigh keys. ``dot_product``: softmax(q kᵀ / √K). ``additive`` (Bahdanau et al., 2015): softmax of
    wᵀ tanh(q + k). Linear in the length: ``performer`` (Choromanski et al., 2021), which estimates the softmax by
    random features, and ``elu`` (Katharopoulos et al., 2020). ``none``, recurrent only: the whole source in one
    vector."""

    random_features: int = 256
    """``performer``: random features per head; more of them are nearer to the softmax."""

    attention_kernel: Literal["auto", "plain", "fused", "flex"] = "auto"
    """Of dot_product. ``plain``: the formula as written. ``fused``: torch's scaled_dot_product_attention (flash where
    the device has it). ``flex``: torch's flex_attention, compiled for the mask on a GPU. ``auto``: fused where it can,
    otherwise plain."""

    attention_window: int = 0
    """Sliding window of self-attention (Beltagy et al., 2020): how far a token looks to either side (in the decoder:
    back), itself included; 0: everywhere."""

    global_positions: int = 0
    """With a window: so many first tokens see all others and are seen by all."""

    def __post_init__(self):
        for name in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "max_positions",
                     "max_distance", "random_features"):  # fmt: skip
            _require(getattr(self, name) >= 1, f"model.{name}={getattr(self, name)} must be at least 1")
        for name in ("num_key_value_heads", "attention_window", "global_positions"):
            _require(getattr(self, name) >= 0, f"model.{name}={getattr(self, name)} must be 0 or more")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            _require(0 <= getattr(self, name) < 1, f"model.{name}={getattr(self, name)} must lie in [0, 1)")
        _require(
            self.d_model % self.num_heads == 0,
            f"model.num_heads={self.num_heads} must divide model.d_model={self.d_model}",
        )
        _require(
            not self.num_key_value_heads or self.num_heads % self.num_key_value_heads == 0,
            f"model.num_key_value_heads={self.num_key_value_heads} must divide model.num_heads={self.num_heads}",
        )
        _require(
            self.attention_window > 0 or not self.global_positions,
            f"model.global_positions={self.global_positions} are exceptions to a window: set model.attention_window",
        )
        {"transformer": self._check_transformer, "recurrent": self._check_recurrent}[self.architecture]()

    def _check_transformer(self) -> None:
        _require(
            self.d_model % 2 == 0 or self.positions != "sinusoidal",
            f"model.d_model={self.d_model} must be even for sinusoidal positions",
        )
        _require(
            self.head_width % 2 == 0 or self.positions != "rotary",
            f"model.d_model={self.d_model} over model.num_heads={self.num_heads} gives heads of odd width "
            f"{self.head_width}; rotary positions turn pairs: choose an even one",
        )
        _require(
            self.attention != "none",
            "model.attention=none needs model.architecture=recurrent: set that, or model.attention=dot_product",
        )
        relative = self.positions if self.positions in ("rotary", "shaw", "alibi") else ""
        if self.attention != "dot_product":
            self._refuse(self.attention_kernel not in ("auto", "plain"), "attention", "attention_kernel", "auto")
            self._refuse(relative == "shaw", "attention", "positions", "sinusoidal")
        if self.attention in ("additive", "elu"):
            self._refuse(relative == "rotary", "attention", "positions", "sinusoidal")
        if self.attention in ("performer", "elu"):
            self._refuse(relative == "alibi", "attention", "positions", "sinusoidal")
            self._refuse(self.attention_window > 0, "attention", "attention_window", "0")
            self._refuse(self.attention_dropout > 0, "attention", "attention_dropout", "0")
        if self.positions == "shaw":
            self._refuse(self.attention_kernel not in ("auto", "plain"), "positions", "attention_kernel", "auto")
        if self.attention_kernel == "flex":
            self._refuse(self.attention_dropout > 0, "attention_kernel", "attention_dropout", "0")
        if relative in ("shaw", "alibi"):
            self._refuse(self.global_positions > 0, "positions", "global_positions", "0")

    def _check_recurrent(self) -> None:
        allowed = {
            "attention": ("dot_product", "additive", "none"),
            "positions": ("sinusoidal", "none"),  # the default, and the truth
            "attention_kernel": ("auto", "plain", "fused"),
            "attention_window": (0,),
            "num_key_value_heads": (0, self.num_heads),
            "norm": ("layer",),  # it has none
            "norm_order": ("pre",),
            "activation": ("relu",),
            "activation_dropout": (0,),
        }
        for name, values in allowed.items():
            self._refuse(getattr(self, name) not in values, "architecture", name, str(values[0]))
        self._refuse(self.attention == "none" and self.attention_dropout > 0, "attention", "attention_dropout", "0")

    def _refuse(self, condition: bool, choice: str, other: str, remedy: str) -> None:
        _require(
            not condition,
            f"model.{other}={getattr(self, other)} does not go with model.{choice}={getattr(self, choice)}: "
            f"set model.{other}={remedy}",
        )

    @property
    def head_width(self) -> int:
        """K, the width of one attention head."""
        return self.d_model // self.num_heads


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
