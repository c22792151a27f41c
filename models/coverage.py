"""The coverage penalty (Wu et al., 2016): a finished translation loses score for what it has left unread of the source.

    penalty * Σ over source positions of log min(Σ over target positions of attention, 1)

Both sums take in the end of sentence. Attention is that of one layer, as the mean of its heads: of the last but one,
where there are several, since it is nearest to an alignment of words (Garg et al., 2019).
Decoding goes on as always, on its own kernels; a forward hook notes what the layer was asked, and the weights are
computed from that.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.cache import DecoderState, share_heads
from models.encoder_decoder import EncoderDecoder, Memory
from models.multi_head_attention import CrossAttention
from models.search import Step


class CoverageState(NamedTuple):
    """Where decoding stands, and what its rows have read of the source."""

    state: DecoderState

    keys: Float[Tensor, "batch heads source dim"]
    """Of the layer that is listened to; one row a sentence."""

    received: Float[Tensor, "rows source"]
    """The attention of each source position so far."""

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "CoverageState":
        keys = self.keys
        if len(rows) != len(keys):  # as in DecoderState: the same number is the same sentences
            keys = keys.index_select(0, rows[:, 0] // self.state.beams)
        return CoverageState(self.state.select(rows), keys, self.received.index_select(0, rows.flatten()))


class Coverage:
    """A step that also counts attention, and the bonus that ``beam_search`` adds to what finishes: 0 at most."""

    def __init__(self, model: EncoderDecoder, step: Step, attention: CrossAttention, penalty: float):
        self.model, self.plain_step, self.attention, self.penalty = model, step, attention, penalty
        self.heard = threading.local()  # batches may run side by side

    @property
    def device(self) -> torch.device:
        return self.attention.output.weight.device

    def start(self, memory: Memory) -> CoverageState:
        keys = share_heads(self.attention.keys_values(memory.states)[0], self.attention.num_heads)
        received = torch.zeros(memory.keys.shape, device=keys.device)
        return CoverageState(self.model.start(memory), keys, received)

    def step(self, ids: Int[Tensor, "rows 1"], state: CoverageState) -> tuple[Tensor, CoverageState]:
        logits, grown = self.plain_step(ids, state.state)
        x = self.heard.asked
        grouped = self.attention.query(x).reshape(len(state.keys), -1, x.size(-1))  # [N, 1, D] -> [B, beams, D]
        weights = self.attention.attend.weights(self.attention.split(grouped), state.keys, grown.mask)
        received = state.received + weights.float().mean(1).flatten(0, 1)
        return logits, CoverageState(grown, state.keys, received)

    def bonus(self, state: CoverageState) -> Float[Tensor, " rows"]:
        received = state.received.clamp(torch.finfo(state.received.dtype).tiny, 1.0)
        keys = state.state.mask.keys.repeat_interleave(state.state.beams, 0)
        return self.penalty * received.log().masked_fill(~keys, 0.0).sum(-1)

    def note(self, attention: CrossAttention, arguments: tuple, output: Tensor) -> None:
        self.heard.asked = arguments[0]


def attention_to_source(model: EncoderDecoder) -> CrossAttention:
    """The attention whose weights are counted.

    :raises ValueError: the model has none.
    """
    layers = [module for module in model.modules() if isinstance(module, CrossAttention)]
    if not layers:
        raise ValueError(
            "search.coverage_penalty counts attention to the source, and this model (model.attention=none) has none: "
            "set it to 0"
        )
    return layers[-2:][0]


@contextmanager
def coverage(model: EncoderDecoder, step: Step, penalty: float) -> Iterator[Coverage]:
    """Listens to the model meanwhile.

    Args:
        step: the model's own, or one that does the same.

    Raises:
        ValueError: the model has no attention to the source.
    """
    counted = Coverage(model, step, attention_to_source(model), penalty)
    handle = counted.attention.register_forward_hook(counted.note)
    try:
        yield counted
    finally:
        handle.remove()
