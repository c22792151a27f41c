"""What decoding remembers between steps, as values that are handed in and handed back."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from models.masks import Mask


def share_heads(x: Float[Tensor, "rows shared length dim"], num_heads: int) -> Float[Tensor, "rows heads length dim"]:
    """Each head as often, one after the other, as it takes to make ``num_heads``; nothing is copied for once."""
    repeats = num_heads // x.size(1)
    return x[:, :, None].expand(-1, -1, repeats, -1, -1).flatten(1, 2)


class KeyValueCache(NamedTuple):
    """Keys and values of one attention layer, [N, H, L, K]; H is what keys and values have, queries may have more."""

    keys: Float[Tensor, "rows heads length dim"]
    values: Float[Tensor, "rows heads length dim"]

    def extend(self, keys: Float[Tensor, "rows heads new dim"], values: Float[Tensor, "rows heads new dim"]):
        """These positions, and then those."""
        if not self.keys.size(-2):  # the training path: nothing to join, nothing to copy
            return KeyValueCache(keys, values)
        return KeyValueCache(torch.cat([self.keys, keys], dim=-2), torch.cat([self.values, values], dim=-2))

    def recent(self, window: int | None, num_global: int) -> "KeyValueCache":
        """What a next query can see through a window: the first ``num_global`` positions and the last of the others."""
        if window is None or self.keys.size(-2) < num_global + window:
            return self
        return KeyValueCache(*(torch.cat([x[:, :, :num_global], x[:, :, x.size(-2) + 1 - window :]], 2) for x in self))

    def shared_by(self, num_heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values for each of ``num_heads`` heads of queries."""
        return share_heads(self.keys, num_heads), share_heads(self.values, num_heads)

    def select(self, rows: Int[Tensor, "*kept"]) -> "KeyValueCache":
        return KeyValueCache(*(x.index_select(0, rows.flatten()) for x in self))


class Rows(NamedTuple):
    """The rows of a state that a step is asked about. What a layer remembers has all of them, so that nothing moves;
    what it computes by itself, it computes of these."""

    asked: Int[Tensor, " asked"] | None = None
    """Their numbers; None: all."""

    places: Int[Tensor, " rows"] | None = None
    """Of every row, where it is among them; of others, any."""

    @classmethod
    def only(cls, asked: Int[Tensor, " asked"], total: int) -> "Rows":
        places = asked.new_zeros(total)
        places[asked] = torch.arange(len(asked), device=asked.device)
        return cls(asked, places)

    def count(self, rows: Shaped[Tensor, "rows *any"]) -> int:
        """How many are asked about, of all these."""
        return len(rows) if self.asked is None else len(self.asked)

    def total(self, x: Shaped[Tensor, "asked *any"]) -> int:
        """How many there are, of which these are asked about."""
        return len(x) if self.places is None else len(self.places)

    def spread(self, x: Shaped[Tensor, "asked *any"]) -> Shaped[Tensor, "rows *any"]:
        """All rows; those of others say anything."""
        return x if self.places is None else x.index_select(0, self.places)

    def take(self, x: Float[Tensor, "rows *any"]) -> Float[Tensor, "asked *any"]:
        return x if self.asked is None else x.index_select(0, self.asked)


ALL_ROWS = Rows()


class DecoderState(NamedTuple):
    """Where decoding stands: N rows, the B sentences they translate (N / B beams each), and what both have said.

    What the layers remember is the choice of their attention: a value with ``select(rows)``, such as
    ``KeyValueCache``; what they remember of the target is asked for the rows [B', beams] that go on.
    """

    past: tuple[Any, ...]
    """Per layer, what self-attention remembers of the target so far: N rows."""

    memory: tuple[Any, ...]
    """Per layer, what cross-attention knows of the source: B rows, shared by the beams."""

    mask: Mask
    """Which source positions are real."""

    position: int
    """The number of target tokens read so far."""

    beams: int = 1
    """Rows of each sentence."""

    rows: Rows = ALL_ROWS
    """Those that the next step reads a token of."""

    def only(self, asked: Int[Tensor, " asked"]) -> "DecoderState":
        """The next step is asked about these rows alone; what becomes of the others is not to be selected."""
        return self._replace(rows=Rows.only(asked, self.mask.keys.size(0) * self.beams))

    def read(self, past: tuple[Any, ...], length: int) -> "DecoderState":
        """The state when so many tokens more are read, of which layers remember ``past``."""
        return self._replace(past=past, position=self.position + length, rows=ALL_ROWS)

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "DecoderState":
        """The state of these rows (flat numbers of present rows, repeated or left out at will).

        Rows of one sentence stay together and sentences keep their order; a sentence all of whose rows are left out
        is dropped, so an unchanged number of sentences means unchanged sentences.
        """
        past = tuple(remembered.select(rows) for remembered in self.past)
        num_sentences = self.mask.keys.size(0)
        if rows.size(0) == num_sentences:
            return self._replace(past=past, beams=rows.size(1))
        sentences = rows[:, 0] // self.beams
        memory = tuple(known.select(sentences) for known in self.memory)
        return DecoderState(past, memory, Mask(self.mask.keys.index_select(0, sentences)), self.position, rows.size(1))
