"""Decoding attention over a tree: the hypotheses of a sentence keep what they share once, and nothing is moved.

Hypotheses that a beam search keeps differ in their last tokens and share the others. So a sentence has one row of keys
and values for all of them: every step appends the positions of its beams, and a hypothesis is the set of positions it
descends from. Three beams, after three steps, each slot named by the token it holds::

                 position     1    2 2 2    3 3 3
                 token        a    b c d    e f g
    beam 1: a b e             1    1 . .    1 . .
    beam 2: a b f             1    1 . .    . 1 .
    beam 3: a d g             1    . . 1    . . 1

The search's choice of parents selects rows of this matrix; keys and values stay where they are, where a cache with a
row for each hypothesis copies all of them at every step. Queries of a sentence are read in one product with its slots.
Now and then the slots that none descends from any more (c, above) are left behind.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from models.attention import DotProductAttention
from models.cache import ALL_ROWS, KeyValueCache, Rows, share_heads
from models.compiled import compiles
from models.compiled_attention import Paths, Source, Table, Target, as_rows

HIDDEN = float("-inf")
GROWTH = 8
"""Room for so many further steps is made at once."""


class Slots:
    """Keys and values of B sentences in memory that grows at its end. Caches that share it read only what was there
    when they were made, and the first to append has the place; any other gets a copy."""

    def __init__(self, keys: Float[Tensor, "batch heads room dim"], values: Float[Tensor, "batch heads room dim"]):
        self.keys, self.values = keys, values
        self.used = keys.size(2)

    def append(self, length: int, keys: Tensor, values: Tensor) -> "Slots":
        """These slots up to ``length``, and then the new ones, whose place may be more than one dimension."""
        new, slots = keys.shape[2:-1].numel(), self
        if length != self.used or length + new > self.keys.size(2):
            room = length + max(length, GROWTH * new)  # who leaves nothing behind copies ever more, and ever less often
            slots = Slots(*(x.new_empty(*x.shape[:2], room, x.size(3)) for x in (self.keys, self.values)))
            slots.keys[:, :, :length] = self.keys[:, :, :length]
            slots.values[:, :, :length] = self.values[:, :, :length]
        for room, x in (slots.keys, keys), (slots.values, values):
            room[:, :, length : length + new].view_as(x).copy_(x)
        slots.used = length + new
        return slots

    def select(self, sentences: Int[Tensor, " kept"], slots: Int[Tensor, "kept slots"], spare: int) -> "Slots":
        """These slots of these sentences, with room for ``spare`` more."""
        heads, room = self.keys.shape[1:3]
        first = (sentences[:, None] * heads + torch.arange(heads, device=slots.device)) * room  # [B', H]
        rows = first[:, :, None] + F.pad(slots, (0, spare))[:, None]  # what fills the room is never read
        selected = Slots(*(F.embedding(rows, x.reshape(-1, x.size(3))) for x in (self.keys, self.values)))
        selected.used = slots.size(1)
        return selected


class Ancestry:
    """Which slots the W hypotheses of each of B sentences descend from: the matrix above, one for all layers.

    Every layer asks for the same next one, which is made once.
    """

    def __init__(
        self,
        hidden: Float[Tensor, "batch beams slots"],
        positions: Int[Tensor, "batch slots"],
        num_positions: int = 0,
        num_tidied: int = 0,
    ):
        self.hidden = hidden  # 0 for a hypothesis's own slots, -inf for those of others
        self.positions = positions  # of the target, from 0
        self.num_positions = num_positions
        self.num_tidied = num_tidied  # slots there were when some were last left behind
        self._grown = self._selected = None

    @classmethod
    def nothing(cls, like: Float[Tensor, "batch *any"]) -> "Ancestry":
        """Of sentences of one hypothesis each that has not begun."""
        return cls(like.new_zeros(len(like), 1, 0), torch.zeros(len(like), 0, dtype=torch.long, device=like.device))

    def grown(self, new: int) -> "Ancestry":
        """Every hypothesis goes on by ``new`` positions of its own, those of a hypothesis side by side."""
        total = self.num_positions + new
        if self._grown is None or self._grown.num_positions != total:
            batch, beams, _ = self.hidden.shape
            own = torch.eye(beams, device=self.hidden.device, dtype=self.hidden.dtype).log().repeat_interleave(new, 1)
            positions = torch.arange(self.num_positions, total, device=self.positions.device).repeat(beams)
            self._grown = Ancestry(
                torch.cat([self.hidden, own.expand(batch, -1, -1)], 2),
                torch.cat([self.positions, positions.expand(batch, -1)], 1),
                total,
                self.num_tidied,
            )
        return self._grown

    def selected(self, rows: Int[Tensor, "sentences beams"]) -> tuple["Ancestry", tuple[Tensor, Tensor] | None]:
        """That of these hypotheses; and, if slots are left behind, those that stay: sentences [B'], slots [B', L']."""
        if self._selected is None or self._selected[0] is not rows:
            batch, beams, length = self.hidden.shape
            sentences = rows[:, 0] // beams
            hidden, positions = self.hidden[sentences[:, None], rows % beams], self.positions
            grown = length - self.num_tidied >= GROWTH * beams and beams > 1
            if len(rows) == batch and not grown:
                self._selected = rows, Ancestry(hidden, positions, self.num_positions, self.num_tidied), None
            else:
                needed = (hidden == 0).any(1)
                most = int(needed.sum(1).max())  # sentences that need fewer keep some that are hidden from all
                slots = needed.byte().argsort(stable=True, dim=1, descending=True)[:, :most]
                hidden = hidden.gather(2, slots[:, None].expand(-1, hidden.size(1), -1))
                positions = positions[sentences].gather(1, slots)
                self._selected = rows, Ancestry(hidden, positions, self.num_positions, most), (sentences, slots)
        return self._selected[1:]


class BeamTree(NamedTuple):
    """What the hypotheses of B sentences have said, as one layer remembers it."""

    slots: Slots
    ancestry: Ancestry

    @property
    def num_positions(self) -> int:
        return self.ancestry.num_positions

    def extend(
        self, keys: Float[Tensor, "asked heads new dim"], values: Float[Tensor, "asked heads new dim"], rows: Rows
    ) -> "BeamTree":
        keys, values = rows.spread(keys), rows.spread(values)
        batch, beams, length = self.ancestry.hidden.shape
        ancestry = self.ancestry.grown(keys.size(2))
        if not length and beams == 1:  # nothing to share, nothing to copy
            return BeamTree(Slots(keys, values), ancestry)
        keys, values = (x.unflatten(0, (batch, beams)).transpose(1, 2) for x in (keys, values))  # [B, H, W, new, K]
        return BeamTree(self.slots.append(length, keys, values), ancestry)

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "BeamTree":
        ancestry, kept = self.ancestry.selected(rows)
        slots = self.slots if kept is None else self.slots.select(*kept, spare=GROWTH * rows.size(1))
        return BeamTree(slots, ancestry)

    def read(
        self, q: Float[Tensor, "asked heads new dim"], score_bias: Callable[[Tensor, int], Tensor | None], rows: Rows
    ) -> Float[Tensor, "asked heads new value"]:
        """What the last positions of the hypotheses that are asked about read from all up to their own."""
        q, tree = rows.spread(q), self.ancestry
        batch, beams, length = tree.hidden.shape
        keys, values = self.slots.keys[:, :, :length], self.slots.values[:, :, :length]
        heads, new, dim = q.shape[1:]
        shared = keys.size(1)  # heads of keys and values, each for so many of the queries' heads:
        groups = heads // shared
        hidden = tree.hidden[:, None]
        bias = score_bias(q, tree.num_positions)
        if bias is not None or new > 1 or groups > 1:
            hidden = hidden[:, :, None, :, None]  # [B, 1, 1, W, 1, L]
            if new > 1:
                now = torch.arange(tree.num_positions - new, tree.num_positions, device=q.device)[:, None]
                hidden = hidden.masked_fill(tree.positions[:, None, None, None, None] > now, HIDDEN)
            if bias is not None:
                positions = tree.positions[:, None, None].expand(-1, *bias.shape[1:3], -1)
                bias = bias.expand(batch, -1, -1, -1).gather(3, positions)
                hidden = hidden + bias.unflatten(1, (shared, groups))[:, :, :, None]
            hidden = hidden.expand(-1, -1, groups, -1, new, -1).flatten(2, 4)
        queries = q.view(batch, beams, shared, groups, new, dim).permute(0, 2, 3, 1, 4, 5)
        queries = queries.reshape(batch, shared, groups * beams * new, dim)
        y = F.scaled_dot_product_attention(queries, keys, values, attn_mask=hidden.to(q.dtype))
        y = y.view(batch, shared, groups, beams, new, -1).permute(0, 3, 1, 2, 4, 5)
        return rows.take(y.reshape(batch * beams, heads, new, -1))


def no_ancestry(like: Float[Tensor, "batch *any"]) -> Ancestry | Paths:
    """That of sentences that have not begun, on the device and of the type of ``like``."""
    return Paths.nothing(len(like)) if compiles(like) else Ancestry.nothing(like)


class BeamAttention(DotProductAttention):
    """Dot-product attention whose self-attention remembers a tree, or, on a CPU, paths (``compiled_attention``)."""

    def remember(self, k, v, mask):
        if compiles(k):
            return Source.of(k, v, mask.keys)
        # A product with many small matrices wants each in one piece, and they are read at every step.
        return KeyValueCache(k, v) if torch.is_grad_enabled() else KeyValueCache(k.contiguous(), v.contiguous())

    def recall_rows(self, q, memory, mask, dropout=0.0, rows=ALL_ROWS):
        if isinstance(memory, Source):
            if q.size(2) == 1:
                return memory.read(q, rows)
            memory = memory.cache(q.size(-1))
        return super().recall_rows(q, memory, mask, dropout, rows)

    def grow_rows(self, q, k, v, past, mask, score_bias, dropout=0.0, rows=ALL_ROWS):
        grown = past.extend(k, v, rows)
        if past.num_positions:
            return grown.read(q, score_bias, rows), grown
        bias = score_bias(q, k.size(2))
        if compiles(q) and bias is None and not mask.causal and mask.window is None:
            # Padding changes no bit of what a token reads, which in 8 bits would be rounded to another number.
            return Source.of(k, v, mask.keys).read_each(q), grown
        keys, values = share_heads(k, q.size(1)), share_heads(v, q.size(1))
        return self(q, keys, values, mask, bias, dropout), grown

    def start(self, k, v, ancestry=None):
        ancestry = ancestry or no_ancestry(k)
        if isinstance(ancestry, Paths):
            return Target(Table(as_rows(k), as_rows(v), 0), ancestry)
        return BeamTree(Slots(k, v), ancestry)
