"""The best continuations of the hypotheses of each sentence, among all next tokens."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int

from models.compiled import BLOCK, best, summarise
from models.rules import IMPOSSIBLE


class Candidates(NamedTuple):
    """Hypotheses one token longer than their parents."""

    totals: Float[Tensor, "sentences candidates"]
    parents: Int[Tensor, "sentences candidates"]
    tokens: Int[Tensor, "sentences candidates"]


@runtime_checkable
class Ranking(Protocol):
    """Next-token log-probabilities of some rows, among which the best are soon found."""

    def best(
        self,
        totals: Float[Tensor, "sentences beams"],
        rows: Int[Tensor, "sentences beams"],
        count: int,
        penalised: int,
        early: int,
    ) -> Candidates:
        """The ``count`` best continuations of each sentence, whose hypotheses go on as ``rows`` say, best first, filled
        up with impossible ones; and so many more that they are still among them when ``penalised`` tokens of every
        hypothesis lose some of their worth. Of equals, token ``early`` may be taken for better."""


class CompiledRanking(NamedTuple):
    """That of logits on a CPU."""

    logits: Float[Tensor, "rows width"]
    maxima: Float[Tensor, "rows blocks"]
    log_sums: Float[Tensor, " rows"]

    @classmethod
    def of(cls, logits: Float[Tensor, "rows width"]) -> CompiledRanking:
        rows, width = logits.shape
        ranking = cls(logits, logits.new_empty(rows, width // BLOCK), logits.new_empty(rows))
        summarise(*(x.numpy() for x in ranking))
        return ranking

    def best(self, totals, rows, count, penalised, early):
        shape = len(totals), count + penalised * totals.size(1)
        found = Candidates(totals.new_full(shape, IMPOSSIBLE), rows.new_zeros(shape), rows.new_zeros(shape))
        asked = self.logits, self.maxima, totals - self.log_sums[rows], rows.contiguous()
        best(*(x.numpy() for x in asked), early, *(x.numpy() for x in found))
        return found


class Blocks(NamedTuple):
    """A ranking that looks into the n blocks of greatest maximum for the n best, which takes a third of the time of
    looking at every one."""

    values: Float[Tensor, "rows width"]
    maxima: Float[Tensor, "rows blocks"]

    @classmethod
    def of(cls, values: Float[Tensor, "rows width"]) -> Blocks:
        blocks = values.size(1) // BLOCK
        return cls(values, values[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)).amax(-1))

    def best(self, totals, rows, count, penalised, early):
        beams, width, blocks = totals.size(1), self.values.size(1), self.maxima.size(1)
        wanted = count + penalised * beams
        n = min(wanted, beams * width)
        if beams * blocks <= 2 * n:
            values, ids = (totals[:, :, None] + self.values[rows]).flatten(1).topk(n)
        else:
            best = (self.maxima[rows] + totals[:, :, None]).flatten(1).topk(n).indices[:, :, None]  # [B, n, 1]
            tail = blocks * BLOCK
            within, rest = (torch.arange(*ends, device=totals.device) for ends in ((BLOCK,), (tail, width)))
            ids = (best // blocks * width + best % blocks * BLOCK + within).flatten(1)
            rest = rest + width * torch.arange(beams, device=totals.device)[:, None]  # what is in no block
            ids = torch.cat([ids, rest.flatten().expand(len(ids), -1)], 1)
            parents = ids // width
            values = self.values.take(rows.gather(1, parents) * width + ids % width) + totals.gather(1, parents)
            values, order = values.topk(n)
            ids = ids.gather(1, order)
        if n < wanted:
            values = F.pad(values, (0, wanted - n), value=IMPOSSIBLE)
            ids = F.pad(ids, (0, wanted - n))
        return Candidates(values, ids // width, ids % width)
