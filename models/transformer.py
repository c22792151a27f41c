"""The encoder-decoder Transformer (Vaswani et al., 2017): source and earlier target tokens in, next-token scores out."""

import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.cache import DecoderState, KeyValueCache
from models.config import TransformerConfig
from torch.nn import Dropout
from models.layers import DecoderLayer, EncoderLayer
from models.masks import Mask
from models.positions import POSITIONS


class Memory(NamedTuple):
    """The encoded source: states [B, S, D], and keys [B, S], True at real tokens."""

    states: Float[Tensor, "batch source width"]
    keys: Bool[Tensor, "batch source"]


class Transformer(nn.Module):
    """Encode once; then decode a whole target at once to train, or step by step to translate: both are one path.

    Padding of the source is known by ``pad_id``. Padding of the target needs no mask, since it follows the real tokens
    and the decoder sees no future.
    """

    def __init__(self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int, pad_id: int):
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
        self.target_embedding = nn.Embedding(target_vocab_size, width)
        self.source_embedding = (
            self.target_embedding if config.tied_embeddings == "all" else nn.Embedding(source_vocab_size, width)
        )
        self.output = nn.Linear(width, target_vocab_size, bias=False)
        if config.tied_embeddings != "none":
            self.output.weight = self.target_embedding.weight
        self.positions = POSITIONS[config.positions]()
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Post-norm layers end with a norm of their own.
        pre = config.norm_order == "pre"
        self.encoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.initialise()

    def initialise(self) -> None:
        """Xavier-uniform projections without bias; embeddings of standard deviation 1 / √D, so that scaled by √D they
        enter at the size of the sinusoids, and as output weights give scores of unit variance."""
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "embedding" in name or name == "output.weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif "query" in name or "key" in name:
                # Block by block, with the bound of one joint [3 D, D] matrix, as torch and fairseq have it.
                for block in parameter.split(self.config.d_model):
                    nn.init.xavier_uniform_(block, gain=2**-0.5)
            else:
                nn.init.xavier_uniform_(parameter)

    @property
    def output_weight(self) -> Float[Tensor, "vocabulary width"]:
        """The matrix that turns hidden states into logits, [V, D]."""
        return self.output.weight

    def forward(
        self, source: Int[Tensor, "batch source"], target_in: Int[Tensor, "batch target"]
    ) -> Float[Tensor, "batch target vocabulary"]:
        """Logits of the token after each of ``target_in``, [B, T, V]."""
        return self.project(self.decode(target_in, self.encode(source)))

    def encode(self, source: Int[Tensor, "batch source"]) -> Memory:
        mask = Mask(keys=source != self.pad_id)
        x = self.embed(source, self.source_embedding)
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory(self.encoder_norm(x), mask.keys)

    def decode(self, target_in: Int[Tensor, "batch target"], memory: Memory) -> Float[Tensor, "batch target width"]:
        """Hidden states of all positions at once, ready for ``project``."""
        return self.advance(target_in, self.start(memory))[0]

    def project(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        return self.output(hidden)

    def start(self, memory: Memory) -> DecoderState:
        """The state before the first target token, one row per sentence."""
        crossed = tuple(layer.cross_attention.read(memory.states) for layer in self.decoder)
        empty = tuple(KeyValueCache(k[:, :, :0], v[:, :, :0]) for k, v in crossed)
        return DecoderState(empty, crossed, Mask(memory.keys))

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
        x = self.embed(ids, self.target_embedding, state.position)
        past = []
        for layer, layer_past, layer_memory in zip(self.decoder, state.past, state.memory):
            x, grown = layer(x, layer_past, layer_memory, state.mask)
            past.append(grown)
        return self.decoder_norm(x), state._replace(past=tuple(past))

    def embed(
        self, ids: Int[Tensor, "rows length"], embedding: nn.Embedding, start: int = 0
    ) -> Float[Tensor, "rows length width"]:
        """Scaled embeddings with their positions, the input of the first layer."""
        return self.dropout(self.positions.embed(embedding(ids) * math.sqrt(self.config.d_model), start))
