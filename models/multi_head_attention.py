"""Multi-head attention (Vaswani et al., 2017): heads of width D / H side by side, within a sequence or across two."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from models.attention import Attention
from models.cache import ALL_ROWS, Rows, share_heads
from models.masks import Mask
from models.positions import RelativePositions


def projection(inner: int, *outer: int, gain: float = 1.0) -> nn.Linear:
    """A linear map, Xavier-uniform and without bias at first; several side by side start as if apart."""
    linear = nn.Linear(inner, sum(outer))
    for block in linear.weight.split(outer):
        nn.init.xavier_uniform_(block, gain)
    nn.init.zeros_(linear.bias)
    return linear


# Queries, keys and values start as in torch's and fairseq's joint [3 D, D] matrix, for attention that is soft at first.
SOFT = 2**-0.5


class MultiHeadAttention(nn.Module):
    """What self- and cross-attention share: heads side by side, each with its own weights, mixed by a last projection.

    ``num_key_value_heads`` of keys and values serve all ``num_heads`` heads of queries (grouped-query attention,
    Ainslie et al., 2023). ``dropout`` acts on the weights of ``attend``.
    """

    def __init__(self, d_model: int, num_heads: int, num_key_value_heads: int, attend: Attention, dropout: float = 0.0):
        super().__init__()
        self.head_width = d_model // num_heads
        self.key_value_width = num_key_value_heads * self.head_width
        self.num_heads = num_heads
        self.attend = attend
        self.attention_dropout = dropout
        self.output = projection(d_model, d_model)

    @property
    def dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # [B, L, H K] -> [B, H, L, K]

    def join(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(-2)  # [B, H, L, K] -> [B, L, H K]


class SelfAttention(MultiHeadAttention):
    """Every position reads the positions of its own sequence. One product makes queries, keys and values."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_key_value_heads: int,
        attend: Attention,
        positions: RelativePositions,
        dropout: float = 0.0,
    ):
        super().__init__(d_model, num_heads, num_key_value_heads, attend, dropout)
        self.positions = positions
        self.query_key_value = projection(d_model, d_model, self.key_value_width, self.key_value_width, gain=SOFT)

    def forward(
        self,
        x: Float[Tensor, "asked length width"],
        mask: Mask,
        past: Any = None,
        start: int = 0,
        rows: Rows = ALL_ROWS,
    ) -> tuple[Float[Tensor, "asked length width"], Any]:
        """Attends over ``past``, which has all rows, and ``x``, whose first position is ``start``; also returns the
        past of the next step."""
        q, k, v = self.queries_keys_values(x, start)
        past = self.start(x) if past is None else past
        heads, past = self.attend.grow_rows(q, k, v, past, mask, self.positions.score_bias, self.dropout, rows)
        return self.output(self.join(heads)), past

    def queries_keys_values(self, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        widths = x.size(-1), self.key_value_width, self.key_value_width
        q, k, v = map(self.split, self.query_key_value(x).split(widths, dim=-1))
        return *self.positions.rotate(q, k, start), v

    def start(self, x: Float[Tensor, "batch length width"], ancestry: Any = None) -> Any:
        """The past of sequences that have not begun, as many as ``x`` has."""
        nothing = self.split(x[:, :0, : self.key_value_width])
        return self.attend.start(nothing, nothing, ancestry)

    def weights(self, x: Float[Tensor, "batch length width"], mask: Mask) -> Float[Tensor, "batch heads length length"]:
        """The attention weights of ``forward`` on a whole sequence."""
        q, k, _ = self.queries_keys_values(x, 0)
        k = share_heads(k, self.num_heads)
        return self.attend.weights(q, k, mask, self.positions.score_bias(q, k.size(-2)))


class CrossAttention(MultiHeadAttention):
    """Every position reads another sequence, whose keys and values are computed once."""

    def __init__(self, d_model: int, num_heads: int, num_key_value_heads: int, attend: Attention, dropout: float = 0.0):
        super().__init__(d_model, num_heads, num_key_value_heads, attend, dropout)
        self.query = projection(d_model, d_model, gain=SOFT)
        self.key_value = projection(d_model, self.key_value_width, self.key_value_width, gain=SOFT)

    def read(self, states: Float[Tensor, "batch source width"], mask: Mask) -> Any:
        """What there is to know of a sequence to attend to."""
        return self.attend.remember(*self.keys_values(states), mask)

    def forward(
        self, x: Float[Tensor, "asked length width"], memory: Any, mask: Mask, rows: Rows = ALL_ROWS
    ) -> Float[Tensor, "asked length width"]:
        """``memory`` has one row per sentence; several successive rows of ``x`` (its beams) may share one."""
        heads = self.attend.recall_rows(self.split(self.query(x)), memory, mask, self.dropout, rows)
        return self.output(self.join(heads))

    def keys_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.key_value(states).chunk(2, dim=-1)
        return self.split(k), self.split(v)

    def weights(
        self, x: Float[Tensor, "batch length width"], states: Float[Tensor, "batch source width"], mask: Mask
    ) -> Float[Tensor, "batch heads length source"]:
        """The attention weights of ``forward``, given what ``read`` was given."""
        k = share_heads(self.keys_values(states)[0], self.num_heads)
        return self.attend.weights(self.split(self.query(x)), k, mask)
