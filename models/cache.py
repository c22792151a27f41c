"""What decoding remembers between steps, as values that are handed in and handed back."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.masks import Mask


class KeyValueCache(NamedTuple):
    """Keys and values of one attention layer, [N, H, L, K]."""

    keys: Float[Tensor, "rows heads length dim"]
    values: Float[Tensor, "rows heads length dim"]

    def extend(self, keys: Float[Tensor, "rows heads new dim"], values: Float[Tensor, "rows heads new dim"]):
        """These positions, and then those."""
        if not self.keys.size(-2):  # the training path: nothing to join, nothing to copy
            return KeyValueCache(keys, values)
        return KeyValueCache(torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2))

    def select(self, rows: Int[Tensor, " kept"]) -> "KeyValueCache":
        return KeyValueCache(self.keys.index_select(0, rows), self.values.index_select(0, rows))


class DecoderState(NamedTuple):
    """Where decoding stands: N rows, the B sentences they translate (N / B beams each), and what both have said."""

    past: tuple[KeyValueCache, ...]
    """Per layer, the self-attention keys and values of the target so far, [N, H, t, K]."""

    memory: tuple[KeyValueCache, ...]
    """Per layer, the cross-attention keys and values of the source, [B, H, S, K], shared by the beams."""

    mask: Mask
    """Which source positions are real."""

    @property
    def position(self) -> int:
        """The number of target tokens read so far."""
        return self.past[0].keys.size(-2)

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "DecoderState":
        """The state of these rows (flat numbers of present rows, repeated or left out at will).

        Rows of one sentence stay together and sentences keep their order; a sentence all of whose rows are left out
        is dropped, so an unchanged number of sentences means unchanged sentences.
        """
        past = tuple(cache.select(rows.flatten()) for cache in self.past)
        num_sentences = self.memory[0].keys.size(0)
        if rows.size(0) == num_sentences:
            return self._replace(past=past)
        beams = self.past[0].keys.size(0) // num_sentences
        sentences = rows[:, 0] // beams
        memory = tuple(cache.select(sentences) for cache in self.memory)
        return DecoderState(past, memory, Mask(self.mask.keys.index_select(0, sentences)))
