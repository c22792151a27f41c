"""The encoder-decoder that attention displaced: LSTMs on both sides (Sutskever et al., 2014; Wu et al., 2016).

The first layer of the decoder asks the source (Bahdanau et al., 2015; Luong et al., 2015), and what it reads goes into
every layer above and into the output. It asks with its own output alone, so a whole target passes each LSTM in one
call, and all its questions are one call too. Without attention, the source is one vector (Cho et al., 2014)::

    target_in ─ LSTM ──┬─────────────── LSTM ─ ... ─ LSTM ── output
                       └─ attention ─────┴────────────┴─────────┘
    source ─── LSTMs in both directions
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.cache import DecoderState
from models.config import ModelConfig
from models.encoder_decoder import EncoderDecoder, Memory
from models.layers import cross_attention
from models.masks import Mask
from models.multi_head_attention import projection


class LSTMState(NamedTuple):
    """What an LSTM remembers of each row, [N, D] both."""

    hidden: Float[Tensor, "rows width"]
    cell: Float[Tensor, "rows width"]

    def select(self, rows: Int[Tensor, "*kept"]) -> "LSTMState":
        return LSTMState(*(x.index_select(0, rows.flatten()) for x in self))


class LSTM(nn.LSTM):
    """One layer in one direction (Hochreiter and Schmidhuber, 1997), on torch's fused kernels.

    Starts with orthogonal recurrent matrices (Saxe et al., 2014) and gates that forget little (Jozefowicz et al.,
    2015). Computes in the type of its weights whatever the autocast: on CUDA torch's autocast would make it float16
    even where bfloat16 is asked for, and small gradients zero.
    """

    def __init__(self, inner: int, width: int):
        super().__init__(inner, width, batch_first=True)
        for gate in self.weight_ih_l0.chunk(4):
            nn.init.xavier_uniform_(gate)
        for gate in self.weight_hh_l0.chunk(4):
            nn.init.orthogonal_(gate)
        nn.init.zeros_(self.bias_ih_l0)
        nn.init.zeros_(self.bias_hh_l0)
        nn.init.ones_(self.bias_ih_l0.chunk(4)[1])  # input, forget, cell, output

    def forward(
        self, x: Float[Tensor, "rows length inner"], state: LSTMState | None = None
    ) -> tuple[Float[Tensor, "rows length width"], LSTMState]:
        """The hidden state after each of ``x``, and all that is carried on; ``state`` is what came before, if any."""
        dtype = self.weight_hh_l0.dtype
        carried = None if state is None else tuple(part[None].to(dtype) for part in state)
        with torch.autocast(x.device.type, enabled=False):
            y, (hidden, cell) = super().forward(x.to(dtype), carried)
        return y, LSTMState(hidden[0], cell[0])


class BidirectionalLSTM(nn.Module):
    """Half of the width reads the source from its first token on, half from its last."""

    def __init__(self, width: int):
        super().__init__()
        self.onward = LSTM(width, width // 2)
        self.backward = LSTM(width, width - width // 2)

    def forward(
        self, x: Float[Tensor, "batch source width"], reversed_order: Int[Tensor, "batch source 1"]
    ) -> Float[Tensor, "batch source width"]:
        onward, _ = self.onward(x)
        backward, _ = self.backward(x.take_along_dim(reversed_order, 1))
        return torch.cat([onward, backward.take_along_dim(reversed_order, 1)], -1)


def reversed_order(keys: Bool[Tensor, "batch source"]) -> Int[Tensor, "batch source 1"]:
    """Where to find each position of a sentence read backwards: real tokens change places, padding stays behind them.

    Twice makes the order of before.
    """
    position = torch.arange(keys.size(1), device=keys.device)
    length = keys.sum(1, keepdim=True)
    return torch.where(position < length, length - 1 - position, position)[..., None]


def summary(
    states: Float[Tensor, "batch source width"], keys: Bool[Tensor, "batch source"]
) -> Float[Tensor, "batch width"]:
    """The whole source in one vector: where each direction of the last layer ended."""
    last = reversed_order(keys)[:, :1]
    half = states.size(-1) // 2
    return torch.cat([states[..., :half].take_along_dim(last, 1)[:, 0], states[:, 0, half:]], -1)


class FixedContext(nn.Module):
    """In place of attention: tanh(W summary + b), the same at every step (Cho et al., 2014)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.output = projection(config.d_model, config.d_model)

    def read(self, states: Float[Tensor, "batch source width"], mask: Mask) -> "FixedMemory":
        return FixedMemory(self.output(summary(states, mask.keys)).tanh())

    def forward(
        self, x: Float[Tensor, "rows length width"], memory: "FixedMemory", mask: Mask
    ) -> Float[Tensor, "rows length width"]:
        """``memory`` has one row per sentence, shared by several successive rows of ``x`` (its beams)."""
        grouped = x.reshape(memory.vector.size(0), -1, x.size(-1))  # [N, L, D] -> [B, beams * L, D]
        return memory.vector[:, None].expand_as(grouped).reshape(x.shape)


class FixedMemory(NamedTuple):
    """What ``FixedContext`` knows of the source."""

    vector: Float[Tensor, "batch width"]

    def select(self, rows: Int[Tensor, " kept"]) -> "FixedMemory":
        return FixedMemory(self.vector.index_select(0, rows))


CONTEXTS = {"none": FixedContext}
"""How the decoder learns of the source, other than by a kind of attention."""


class DecoderLSTM(LSTM):
    """An LSTM that starts from the summary of the source."""

    def __init__(self, inner: int, width: int):
        super().__init__(inner, width)
        self.initial = projection(width, width, width)

    def start(self, source: Float[Tensor, "batch width"]) -> LSTMState:
        return LSTMState(*self.initial(source).tanh().chunk(2, -1))


class RecurrentModel(EncoderDecoder):
    """LSTMs within the source and within the target so far, and attention, or one vector, from one to the other.

    From the second layer of either side on, what a layer computes is added to its input (Wu et al., 2016).
    """

    def __init__(self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int):
        super().__init__(config, source_vocab_size, target_vocab_size, pad_id)
        width = config.d_model
        self.encoder = nn.ModuleList(BidirectionalLSTM(width) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(
            DecoderLSTM(width if layer == 0 else 2 * width, width) for layer in range(config.decoder_layers)
        )
        self.context = CONTEXTS.get(config.attention, cross_attention)(config)
        self.output = projection(2 * width, width)

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        keys = source != self.pad_id
        order = reversed_order(keys)
        first, *further = self.encoder
        x = first(self.dropout(self.scaled(self.source_embedding, source)), order)
        for layer in further:
            x = x + layer(self.dropout(x), order)
        return Memory(x, keys)

    def start(self, memory: Memory) -> DecoderState:
        mask = Mask(memory.keys)
        source = summary(memory.states, memory.keys)
        past = tuple(layer.start(source) for layer in self.decoder)
        return DecoderState(past, (self.context.read(memory.states, mask),), mask, position=0)

    def advance(
        self, ids: Int[Tensor, "rows new"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows new width"], DecoderState]:
        first, *further = self.decoder
        ids = state.rows.spread(ids)  # an LSTM's rows are not worth sparing
        x, grown = first(self.dropout(self.scaled(self.target_embedding, ids)), state.past[0])
        past = [grown]
        context = self.context(x, *state.memory, state.mask)
        for layer, layer_past in zip(further, state.past[1:], strict=True):
            y, grown = layer(self.dropout(torch.cat([x, context], -1)), layer_past)
            x = x + y
            past.append(grown)
        hidden = self.output(self.dropout(torch.cat([x, context], -1))).tanh()
        return state.rows.take(hidden), state.read(tuple(past), ids.size(1))
