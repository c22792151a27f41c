"""What every encoder-decoder has: embedding tables, scores of the next token, and one path to train and translate."""

import math
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.cache import DecoderState
from models.config import ModelConfig
from models.dropout import Dropout


class Memory(NamedTuple):
    """The encoded source: states [B, S, D], and keys [B, S], True at real tokens."""

    states: Float[Tensor, "batch source width"]
    keys: Bool[Tensor, "batch source"]


def embedding(vocab_size: int, width: int) -> nn.Embedding:
    """A table whose entries, scaled by √D, have unit variance; as output weights they give scores of unit variance."""
    table = nn.Embedding(vocab_size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


class EncoderDecoder(nn.Module):
    """Encode once; then decode a whole target at once to train, or step by step to translate: both are one path.

    An architecture gives ``encode``, ``start`` and ``advance``. Padding of the source is known by ``pad_id``. Padding
    of the target needs no mask, since it follows the real tokens and the decoder sees no future.
    """

    def __init__(self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int):
        """:raises ValueError: if all embeddings are to be tied and the vocabularies differ in size."""
        super().__init__()
        if config.tied_embeddings == "all" and source_vocab_size != target_vocab_size:
            raise ValueError(
                f"model.tied_embeddings=all needs one joint vocabulary, but the source has {source_vocab_size} pieces "
                f"and the target {target_vocab_size}: use a joint tokenizer or model.tied_embeddings=target"
            )
        self.config = config
        self.pad_id = pad_id
        width = config.d_model
        tied = config.tied_embeddings
        self.target_embedding = embedding(target_vocab_size, width)
        self.source_embedding = self.target_embedding if tied == "all" else embedding(source_vocab_size, width)
        self.output_embedding = self.target_embedding if tied != "none" else embedding(target_vocab_size, width)
        self.dropout = Dropout(config.dropout)

    @property
    def output_weight(self) -> Float[Tensor, "vocabulary width"]:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.output_embedding.weight

    def forward(
        self, source: Int[Tensor, "batch source"], target_in: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits of the token after each of ``target_in``, [B, T, V]."""
        return self.project(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        raise NotImplementedError

    def decode(self, target_in: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target width"]:
        """Hidden states of all positions at once, ready for ``project``."""
        return self.advance(target_in, self.start(memory))[0]

    def project(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return F.linear(hidden, self.output_weight)

    def start(self, memory: Memory) -> DecoderState:
        """The state before the first target token, one row per sentence."""
        raise NotImplementedError

    def step(
        self, ids: Int[Tensor, "rows new"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows vocabulary"], DecoderState]:
        """Reads the next token of each row (or several); returns the logits of the one after, and the new state."""
        hidden, state = self.advance(ids, state)
        return self.project(hidden[:, -1]), state

    def advance(
        self, ids: Int[Tensor, "rows new"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows new width"], DecoderState]:
        """The decoder itself: hidden states of ``ids``, which follow what ``state`` has read, and the grown state."""
        raise NotImplementedError

    def scaled(self, embedding: nn.Embedding, ids: Int[Tensor, "rows length"]) -> Float[Tensor, "rows length width"]:
        """The embeddings of ``ids``, of unit variance at first."""
        return embedding(ids) * math.sqrt(self.config.d_model)
