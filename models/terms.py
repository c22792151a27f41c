"""Terms that a translation must contain: which hypotheses of one sentence a beam search keeps while some are unmet.

A term is a sequence of tokens, and is met where it occurs in one piece and its last word ends there (``Words``); terms
may overlap, and one that is asked for twice is met by one occurrence. The end of sentence is out of reach until all are
met.

Hypotheses with few of their terms are more probable than those with many, and would crowd them out. So each competes
with those alone that need as many more tokens for their terms as itself, and the beam is dealt out to these banks in
turn (dynamic beam allocation, Post and Vilar, 2018). For every bank to have a place, the beam must be wider than the
number of tokens of all terms. A hypothesis that can no longer say them one after the other gets what others leave: thus
terms that fit below the limit are always met, and a beam as wide as the space is exact.
"""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.rules import IMPOSSIBLE

Term = tuple[int, ...]

LIKELY = 64
"""Tokens among which one is looked for that begins a new word."""


class Words(NamedTuple):
    """Which tokens stand in one word: those that end within one before those that go on with it. By default none."""

    ending_within: Set[int] = frozenset()

    going_on: Set[int] = frozenset()

    def joins(self, token: int, following: int) -> bool:
        return token in self.ending_within and following in self.going_on


APART = Words()


class Progress(NamedTuple):
    """How far a hypothesis has come with its terms."""

    unmet: frozenset[Term]

    begun: Term = ()
    """The last tokens of the hypothesis, as many as begin an unmet term."""

    said: frozenset[Term] = frozenset()
    """Terms that the hypothesis ends in; if the next token goes on with their last word, they are unmet again."""

    @classmethod
    def start(cls, terms: Iterable[Sequence[int]]) -> "Progress":
        """:raises ValueError: a term is empty."""
        unmet = frozenset(map(tuple, terms))
        if () in unmet:
            raise ValueError("a term has no tokens: leave it out")
        return cls(unmet)

    @property
    def need(self) -> int:
        """So many more tokens meet all terms, if one is said after the other; fewer may do, where terms overlap."""
        return sum(map(len, self.unmet)) - len(self.begun)

    @property
    def wanted(self) -> set[int]:
        """The tokens that lessen the need."""
        said = len(self.begun)
        return {term[said] for term in self.unmet if term[:said] == self.begun}

    def undone_by(self, token: int, words: Words) -> bool:
        """Whether the token goes on with the last word of what has been said."""
        return any(words.joins(term[-1], token) for term in self.said)

    def after(self, token: int, words: Words = APART) -> "Progress":
        unmet = self.unmet | self.said if self.undone_by(token, words) else self.unmet
        spoken = (*max([self.begun, *self.said], key=len), token)
        said = frozenset(term for term in unmet if spoken[-len(term) :] == term)
        unmet -= said
        endings = (spoken[i:] for i in range(len(spoken)))
        begun = (ending for ending in endings if any(term[: len(ending)] == ending for term in unmet))
        return Progress(unmet, next(begun, ()), said)


Rows = tuple[Float[Tensor, "*sentences beams"], Int[Tensor, "*sentences beams"], Int[Tensor, "*sentences beams"]]
"""Totals, parents and tokens of hypotheses one token longer than their parents; total -inf where there are fewer."""


def choose(
    progress: Sequence[Progress],
    totals: Float[Tensor, " parents"],
    log_probs: Float[Tensor, "parents vocabulary"],
    *,
    eos_id: int,
    beam_size: int,
    room: int,
    width: int,
    words: Words = APART,
) -> tuple[Rows, Rows, list[Progress]]:
    """The continuations of one sentence's hypotheses that end and count, and those that live on with their progress.

    An ending one counts if it is among the ``beam_size`` best of those that need nothing more, or as good as the last
    of these; ``beam_size`` of the others live on.

    Args:
        room: the number of tokens that may follow this one, end of sentence counted.
        width: so many of both are returned, filled up with impossible ones.
        words: what tells where the last word of a term ends.
    """
    vocabulary = log_probs.size(1)
    scores = totals[:, None] + log_probs
    scores[[row for row, each in enumerate(progress) if each.unmet], eos_id] = IMPOSSIBLE

    # The best of every bank, whatever brings a hypothesis on, and what leaves alone that which has been said.
    found = {}
    for need in {each.need for each in progress}:
        rows = [row for row, each in enumerate(progress) if each.need == need]
        best, order = scores[rows].flatten().topk(min(2 * beam_size, len(rows) * vocabulary))
        places = ((rows[i // vocabulary], i % vocabulary) for i in order.tolist())
        found.update(zip(places, best.tolist(), strict=True))
    onwards = [(row, token) for row, each in enumerate(progress) for token in each.wanted or {eos_id}]
    for row, each in enumerate(progress):
        if each.said and words != APART:
            likely = scores[row].topk(min(LIKELY, vocabulary)).indices.tolist()
            onwards += [(row, token) for token in likely if token != eos_id and not each.undone_by(token, words)][:1]
    found.update(zip(onwards, scores[tuple(zip(*onwards, strict=True))].tolist(), strict=True))

    # Dealt out: the best of every bank, then the second best; first those near their aim, and at last those too late.
    ending, living, ranks = [], [], Counter()
    for (parent, token), total in sorted(found.items(), key=lambda item: (-item[1], item[0][1] != eos_id)):
        if total == IMPOSSIBLE:
            continue
        ends = token == eos_id
        after = progress[parent] if ends else progress[parent].after(token, words)
        late = after.need >= max(room, 1)
        rank = ranks[after.need]
        ranks[after.need] += 1
        if not ends:
            living.append(((late, rank, after.need), (total, parent, token), after))
        elif rank < beam_size:
            ending.append((total, parent, token))
    living = sorted(living, key=lambda each: each[0])[:beam_size]
    if room <= 0:  # nothing may follow, so what lacks a term is of no use where anything has all
        living = [each for each in living if not each[2].unmet] or living
    living.sort(key=lambda each: -each[1][0])

    def filled_up(chosen: list[tuple[float, int, int]]) -> Rows:
        chosen = chosen + [(IMPOSSIBLE, 0, eos_id)] * (width - len(chosen))
        values, parents, tokens = zip(*chosen, strict=True)
        return scores.new_tensor(values), *torch.tensor([parents, tokens], device=scores.device)

    following = [after for *_, after in living]
    following += [progress[0]] * (width - len(following))
    return filled_up(ending), filled_up([each for _, each, _ in living]), following


def choose_each(
    progress: Sequence[Sequence[Progress]],
    totals: Float[Tensor, "sentences parents"],
    log_probs: Float[Tensor, "sentences parents vocabulary"],
    *,
    eos_id: int,
    beam_sizes: Sequence[int],
    rooms: Sequence[int],
    words: Words = APART,
) -> tuple[Rows, Rows, list[list[Progress]]]:
    """``choose`` for every sentence of a batch, side by side; they may have beams of different size."""
    chosen = [
        choose(*each, eos_id=eos_id, beam_size=beam_size, room=room, width=max(beam_sizes), words=words)
        for *each, beam_size, room in zip(progress, totals, log_probs, beam_sizes, rooms, strict=True)
    ]
    ending, living, following = zip(*chosen, strict=True)
    return (*(tuple(map(torch.stack, zip(*rows, strict=True))) for rows in (ending, living)), list(following))


def contains(ids: Sequence[int], term: Sequence[int]) -> bool:
    """Whether the term occurs in one piece."""
    return any(tuple(ids[i : i + len(term)]) == tuple(term) for i in range(len(ids) - len(term) + 1))
