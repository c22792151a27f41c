"""The encoder-decoder Transformer (Vaswani et al., 2017): source and target so far in, scores of the next token out."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from models.beam_attention import no_ancestry
from models.cache import DecoderState
from models.config import ModelConfig
from models.encoder_decoder import EncoderDecoder, Memory
from models.layers import NORMS, DecoderLayer, EncoderLayer, self_attention_mask
from models.masks import Mask
from models.positions import ABSOLUTE_POSITIONS, AbsolutePositions


class Transformer(EncoderDecoder):
    """Attention only: within the source, within the target so far, and from the target to the source."""

    def __init__(self, config: ModelConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int):
        super().__init__(config, source_vocab_size, target_vocab_size, pad_id)
        positions = ABSOLUTE_POSITIONS.get(config.positions, lambda config: AbsolutePositions())
        self.source_positions, self.target_positions = positions(config), positions(config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Post-norm layers end with a norm of their own.
        norm = NORMS[config.norm] if config.norm_order == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = (norm(config.d_model, eps=1e-5) for _ in range(2))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        mask = self_attention_mask(self.config, keys=source != self.pad_id)
        x = self.embed(source, self.source_embedding, self.source_positions)
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory(self.encoder_norm(x), mask.keys)

    def start(self, memory: Memory) -> DecoderState:
        mask = Mask(memory.keys)
        ancestry = no_ancestry(memory.states)
        past = tuple(layer.self_attention.start(memory.states, ancestry) for layer in self.decoder)
        known = tuple(layer.cross_attention.read(memory.states, mask) for layer in self.decoder)
        return DecoderState(past, known, mask, position=0)

    def advance(
        self, ids: Int[Tensor, "rows new"], state: DecoderState
    ) -> tuple[Float[Tensor, "rows new width"], DecoderState]:
        x = self.embed(ids, self.target_embedding, self.target_positions, state.position)
        past = []
        for layer, layer_past, layer_memory in zip(self.decoder, state.past, state.memory, strict=True):
            x, grown = layer(x, layer_past, state.position, layer_memory, state.mask, state.rows)
            past.append(grown)
        return self.decoder_norm(x), state.read(tuple(past), ids.size(1))

    def embed(
        self, ids: Int[Tensor, "rows length"], embedding: nn.Embedding, positions: AbsolutePositions, start: int = 0
    ) -> Float[Tensor, "rows length width"]:
        """Scaled embeddings with their positions, the input of the first layer."""
        return self.dropout(positions.embed(self.scaled(embedding, ids), start))
