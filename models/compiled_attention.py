"""Decoding attention on a CPU, compiled by numba: a query reads the keys and values that it sees, and no others.

Keys and values of a layer lie in a table, a row for each position, heads side by side; what a query sees is a list of
rows. Of the source, it sees the tokens of its sentence; of the target, the path that its hypothesis has come. Three
beams of one sentence, after three steps, each row of the table named by the token it holds::

    table        a  b c d  e f g
    beam 1       a  b      e          as a list: 0 1 4
    beam 2       a  b        f                   0 1 5
    beam 3       a      d      g                 0 3 6

The search's choice of parents selects lists; keys and values stay where they are, also when sentences leave. Products
of batches of matrices, which are all that torch has for this, read for every hypothesis what all of its sentence see,
and for every sentence as much as the neediest one: on a CPU, four times as much work.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.cache import ALL_ROWS, KeyValueCache, Rows
from models.compiled import attend

GROWTH = 8
"""Room for so many further steps is made at once."""

NO_NUMBERS = torch.zeros(0, dtype=torch.long)


def as_rows(heads: Float[Tensor, "batch heads length dim"]) -> Float[Tensor, "rows width"]:
    return heads.transpose(1, 2).flatten(0, 1).flatten(1)  # [B, H, L, K] -> [B L, H K]


class Table:
    """Keys and values of one layer, in memory that grows at its end. What shares it reads only what was there when it
    was made, and the first to append has the place; any other gets a copy."""

    def __init__(self, keys: Float[Tensor, "room width"], values: Float[Tensor, "room width"], used: int):
        self.keys, self.values, self.used = keys, values, used

    def append(self, start: int, keys: Tensor, values: Tensor, room: int) -> "Table":
        """The rows up to ``start``, and then these."""
        table, end = self, start + len(keys)
        if start != self.used or room != len(self.keys):
            table = self.kept(slice(start), room)
        table.keys[start:end], table.values[start:end], table.used = keys, values, end
        return table

    def kept(self, rows: Int[Tensor, " kept"] | slice, room: int) -> "Table":
        """A table of these rows, with room for others."""
        keys, values = self.keys[rows], self.values[rows]
        table = Table(*(x.new_empty(room, x.size(1)) for x in (keys, values)), len(keys))
        table.keys[: len(keys)], table.values[: len(keys)] = keys, values
        return table

    def read(
        self,
        q: Float[Tensor, "asked heads 1 dim"],
        seen: Int[Tensor, "lists length"],
        counts: Int[Tensor, " lists"] = NO_NUMBERS,
        rows: Rows = ALL_ROWS,
        beams: int = 1,
        bias: Float[Tensor, "#asked heads 1 length"] | None = None,
    ) -> Float[Tensor, "asked heads 1 dim"]:
        """What each query reads from the first ``counts`` (none given: all) of what its list names, which it shares
        with as many as its sentence has ``beams``."""
        queries = as_rows(q).contiguous()
        bias = q.new_empty(0, 0, 0) if bias is None else bias[:, :, 0].contiguous()
        asked = NO_NUMBERS if rows.asked is None else rows.asked
        read = torch.empty_like(queries)
        queries_keys_values, lists = (queries, self.keys, self.values), (seen, counts, asked)
        attend(*(x.numpy() for x in (*queries_keys_values, *lists)), beams, bias.numpy(), q.size(-1), read.numpy())
        return read.view(len(q), 1, q.size(1), -1).transpose(1, 2)


class Source(NamedTuple):
    """What one layer's cross-attention knows of the sources of B sentences."""

    table: Table
    seen: Int[Tensor, "batch source"]
    counts: Int[Tensor, " batch"]

    @classmethod
    def of(
        cls,
        k: Float[Tensor, "batch shared keys dim"],
        v: Float[Tensor, "batch shared keys dim"],
        real: Bool[Tensor, "batch keys"] | None,
    ) -> "Source":
        batch, length = k.size(0), k.size(2)
        seen = torch.arange(batch * length).view(batch, length)
        counts = torch.full((batch,), length)
        if real is not None:
            seen, counts = seen.gather(1, real.byte().argsort(dim=1, descending=True, stable=True)), real.sum(1)
        table = Table(*(as_rows(x).contiguous() for x in (k, v)), batch * length)
        return cls(table, seen, counts)

    def select(self, sentences: Int[Tensor, " kept"]) -> "Source":
        return self._replace(seen=self.seen[sentences], counts=self.counts[sentences])

    def read(self, q: Float[Tensor, "asked heads 1 dim"], rows: Rows) -> Float[Tensor, "asked heads 1 dim"]:
        return self.table.read(q, self.seen, self.counts, rows, beams=rows.total(q) // len(self.seen))

    def read_each(self, q: Float[Tensor, "batch heads queries dim"]) -> Float[Tensor, "batch heads queries dim"]:
        """What each of as many queries for every sentence reads."""
        rows = q.transpose(1, 2).flatten(0, 1)[:, :, None]  # [B, H, L, K] -> [B L, H, 1, K]
        return self.read(rows, ALL_ROWS)[:, :, 0].unflatten(0, (len(q), -1)).transpose(1, 2)

    def cache(self, dim: int) -> KeyValueCache:
        """Keys and values as matrices."""
        rows = self.seen.sort(dim=1).values  # as they came, padding among them
        heads = (x[rows].unflatten(2, (-1, dim)) for x in (self.table.keys, self.table.values))
        return KeyValueCache(*(x.transpose(1, 2) for x in heads))


class Paths:
    """The rows of the table, one for all layers, that each of N hypotheses has come by.

    Every layer asks for the same next ones, which are made once.
    """

    def __init__(self, rows: Int[Tensor, "rows length"], used: int, room: int):
        self.rows = rows
        self.used, self.room = used, room  # of the table
        self._grown = self._selected = None

    @classmethod
    def nothing(cls, num_sentences: int) -> "Paths":
        return cls(torch.zeros(num_sentences, 0, dtype=torch.long), 0, 0)

    def grown(self, new: int, asked: Rows) -> tuple["Paths", Int[Tensor, " kept"] | None]:
        """The hypotheses that are asked about go on by ``new`` rows each, at the end of the table. Where it is full,
        what no path leads by is left behind first; then, also the rows that stay."""
        if self._grown is None or self._grown[0] != new or self._grown[1] is not asked:
            rows, used, room, kept = self.rows, self.used, self.room, None
            end = used + new * asked.count(rows)
            if end > room:
                kept, rows = rows.unique(return_inverse=True)
                used, end = len(kept), len(kept) + end - used
                room = used + max(used, GROWTH * (end - used))
            own = asked.spread(torch.arange(used, end).view(-1, new))
            self._grown = new, asked, Paths(torch.cat([rows, own], 1), end, room), kept
        return self._grown[2:]

    def selected(self, rows: Int[Tensor, "sentences beams"]) -> "Paths":
        if self._selected is None or self._selected[0] is not rows:
            self._selected = rows, Paths(self.rows[rows.flatten()], self.used, self.room)
        return self._selected[1]


class Target(NamedTuple):
    """What the hypotheses have said, as one layer's self-attention remembers it."""

    table: Table
    paths: Paths

    @property
    def num_positions(self) -> int:
        return self.paths.rows.size(1)

    def extend(
        self, k: Float[Tensor, "asked heads new dim"], v: Float[Tensor, "asked heads new dim"], rows: Rows
    ) -> "Target":
        paths, kept = self.paths.grown(k.size(2), rows)
        table, start = self.table, self.paths.used
        if kept is not None:
            table, start = table.kept(kept, paths.room), len(kept)
        return Target(table.append(start, as_rows(k), as_rows(v), paths.room), paths)

    def select(self, rows: Int[Tensor, "sentences beams"]) -> "Target":
        return Target(self.table, self.paths.selected(rows))

    def read(
        self, q: Float[Tensor, "asked heads new dim"], score_bias: Callable[[Tensor, int], Tensor | None], rows: Rows
    ) -> Float[Tensor, "asked heads new dim"]:
        """What the last positions of the hypotheses that are asked about read from all up to their own."""
        seen, new = self.paths.rows, q.size(2)
        lists, length = seen.shape
        bias = score_bias(q, length)
        if new == 1:
            return self.table.read(q, seen, rows=rows, bias=bias)
        read = []
        for i in range(new):
            counts = torch.full((lists,), length - new + 1 + i)
            its_own = bias if bias is None else bias[:, :, i : i + 1]
            read.append(self.table.read(q[:, :, i : i + 1], seen, counts, rows, bias=its_own))
        return torch.cat(read, 2)
