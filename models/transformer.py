"""The encoder-decoder Transformer (Vaswani et al., 2017): source and target so far in, scores of the next token out."""

import math
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.cache import DecoderState
from models.config import ModelConfig
from models.dropout import Dropout
from models.layers import NORMS, DecoderLayer, EncoderLayer, self_attention_mask
from models.masks import Mask
from models.positions import ABSOLUTE_POSITIONS, AbsolutePositions


class Memory(NamedTuple):
    """The encoded source: states [B, S, D], and keys [B, S], True at real tokens."""

    states: Float[Tensor, "batch source width"]
    keys: Bool[Tensor, "batch source"]


def embedding(vocab_size: int, width: int) -> nn.Embedding:
    """A table whose entries, scaled by √D, are as large as the sinusoids; as output weights they give scores of unit
    variance."""
    table = nn.Embedding(vocab_size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table


class Transformer(nn.Module):
    """Encode once; then decode a whole target at once to train, or step by step to translate: both are one path.

    Padding of the source is known by ``pad_id``. Padding of the target needs no mask, since it follows the real tokens
    and the decoder sees no future.
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
        positions = ABSOLUTE_POSITIONS.get(config.positions, lambda config: AbsolutePositions())
        self.source_positions, self.target_positions = positions(config), positions(config)
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Post-norm layers end with a norm of their own.
        norm = NORMS[config.norm] if config.norm_order == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = norm(width, eps=1e-5), norm(width, eps=1e-5)

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
        mask = self_attention_mask(self.config, keys=source != self.pad_id)
        x = self.embed(source, self.source_embedding, self.source_positions)
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory(self.encoder_norm(x), mask.keys)

    def decode(self, target_in: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target width"]:
        """Hidden states of all positions at once, ready for ``project``."""
        return self.advance(target_in, self.start(memory))[0]

    def project(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return F.linear(hidden, self.output_weight)

    def start(self, memory: Memory) -> DecoderState:
        """The state before the first target token, one row per sentence."""
        mask = Mask(memory.keys)
        past = tuple(layer.self_attention.start(memory.states) for layer in self.decoder)
        known = tuple(layer.cross_attention.read(memory.states, mask) for layer in self.decoder)
        return DecoderState(past, known, mask, position=0)

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
        x = self.embed(ids, self.target_embedding, self.target_positions, state.position)
        past = []
        for layer, layer_past, layer_memory in zip(self.decoder, state.past, state.memory, strict=True):
            x, grown = layer(x, layer_past, state.position, layer_memory, state.mask)
            past.append(grown)
        return self.decoder_norm(x), state._replace(past=tuple(past), position=state.position + ids.size(1))

    def embed(
        self, ids: Int[Tensor, "rows length"], embedding: nn.Embedding, positions: AbsolutePositions, start: int = 0
    ) -> Float[Tensor, "rows length width"]:
        """Scaled embeddings with their positions, the input of the first layer."""
        return self.dropout(positions.embed(embedding(ids) * math.sqrt(self.config.d_model), start))
