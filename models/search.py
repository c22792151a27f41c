"""Greedy and beam search over any step function: the search knows rows, tokens and probabilities, never a model.

A step takes the last token of every row and the state, and returns next-token logits and the new state. The state
needs one method, ``select(rows)``: go on with these rows. The sentences of a batch advance together, but what is kept
of a sentence depends on that sentence alone, and one that is done leaves the batch. Where a state can be asked about
some of its rows alone (``only(rows)``), hypotheses that can no longer win cost no step.

The score of a hypothesis is the sum of its tokens' log-probabilities, normalised for its length (``models.length``).
Probabilities are the model's: normalised over all tokens but the forbidden ones, which stand for no text. Whatever else
restricts a search (``models.rules``) takes hypotheses away and leaves the scores of the others, so a returned score is
what ``score_targets`` gives to the returned tokens. Scores are kept in float32 whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.compiled import compiles
from models.length import LengthNormalisation
from models.ranking import Blocks, Candidates, CompiledRanking, Ranking
from models.rules import IMPOSSIBLE, Rule, repetition_penalty
from models.terms import APART, Progress, Words, choose_each

LEAVING = 0.25
"""Sentences that are done leave the batch once they are such a part of it: to leave is to copy those that stay."""

SPARING = 0.0625
"""Rows are left out of a step where they are such a part of all: to leave them out is to copy some of the others."""

UNNORMALISED = LengthNormalisation(0.0)


@runtime_checkable
class State(Protocol):
    def select(self, rows: Int[Tensor, "sentences beams"]) -> State:
        """The state of these rows; rows of one sentence stay together, sentences keep their order, some may go."""


@runtime_checkable
class SparingState(State, Protocol):
    def only(self, asked: Int[Tensor, " asked"]) -> SparingState:
        """The next step is given tokens of these rows alone, and gives logits of them. Then there are all rows again,
        of which the others say nothing and are not selected for what they say."""


S = TypeVar("S", bound=State)
Step = Callable[[Int[Tensor, "rows 1"], S], tuple[Float[Tensor, "rows vocabulary"], S]]
"""(last tokens, state) -> (logits of the next token, state). Log-probabilities are logits too. The logits are the
search's to change."""


class Hypothesis(NamedTuple):
    ids: list[int]
    """Tokens, without begin and end of sentence."""

    score: float
    """Length-normalised log-probability, end of sentence counted."""

    finished: bool
    """False: the length limit stopped it, and its last token is an ordinary one."""


@torch.no_grad()
def beam_search(
    step: Step,
    state: State,
    max_lengths: Int[Tensor, " sentences"],
    *,
    beam_size: int,
    bos_id: int,
    eos_id: int,
    forbidden_ids: Sequence[int] = (),
    length: LengthNormalisation = UNNORMALISED,
    repetition: float = 1.0,
    rules: Sequence[Rule] = (),
    terms: Sequence[Sequence[Sequence[int]]] = (),
    words: Words = APART,
    bonus: Callable[[S], Float[Tensor, " rows"]] | None = None,
    groups: int = 1,
    diversity: float = 0.0,
    num_hypotheses: int = 1,
    check_every: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every sentence, best first: one to ``num_hypotheses`` of them.

    At every length the ``beam_size`` best unfinished hypotheses live on, and an ending one counts if it is among the
    ``beam_size`` best of its length, or as good as the last of these. A sentence is done when no living hypothesis,
    however it goes on, could beat the last of its ``num_hypotheses`` best finished ones; asking for more therefore
    never changes the first. Hypotheses stopped by the limit, or by rules that leave nothing, are returned only where
    none has finished. One beam is greedy search: the first end of sentence is final.

    Args:
        step, state: see the module. ``state`` comes with one row a sentence; the search widens it.
        max_lengths: the most tokens of each sentence, end of sentence counted; on the model's device.
        forbidden_ids: tokens that stand for no text, such as padding and begin of sentence.
        length: what makes hypotheses of different lengths comparable, and the bound of what a living one may reach.
        repetition: see ``models.rules.repetition_penalty``.
        rules: restrictions of what may follow what.
        terms: what must occur in each sentence's translation (``models.terms``), whose beam is wider by as many
            hypotheses as its terms have tokens, so that they do not take the place of others. Not with groups.
        words: tells where the last word of a term ends.
        bonus: adds to the score of what finishes from each row of a state, 0 at most (``models.coverage``).
        groups: the beam's hypotheses are kept in so many groups, each of ``beam_size / groups``.
        diversity: a token costs a group so much for each hypothesis of an earlier group that takes it at the same
            length (Vijayakumar et al., 2018). It decides what lives on, and is in no score.
        check_every: sentences may leave the batch at every so many lengths; each time the host waits for the device.

    Raises:
        ValueError: for contradictory lengths or counts, and for a step that returns NaN.
    """
    if not 1 <= num_hypotheses <= beam_size:
        raise ValueError(f"num_hypotheses={num_hypotheses} must lie between 1 and beam_size={beam_size}")
    if beam_size % groups:
        raise ValueError(f"groups={groups} must divide beam_size={beam_size}")
    longest = _longest(max_lengths)
    progress = [[Progress.start(each)] for each in terms]  # of every hypothesis of every running sentence
    beam_sizes = [beam_size + each.need for [each] in progress]
    alive = torch.arange(len(max_lengths), device=max_lengths.device)  # sentences still running, B of them
    forbidden = alive.new_tensor(forbidden_ids)
    tokens = alive.new_full((len(alive), 1), bos_id)
    totals = torch.zeros(len(alive), 1, device=alive.device, dtype=torch.float32)
    histories = alive.new_full((len(alive), 1, longest), eos_id)
    kept = num_hypotheses if groups == 1 else beam_size  # groups may find the same
    running = torch.ones_like(alive, dtype=torch.bool)  # those of them that are not waiting to leave
    asked = None  # rows that the step is asked about; None: all
    spares = isinstance(state, SparingState) and groups == 1 and not terms and bonus is None
    finished = Found.nothing(histories, kept)
    unfinished = Found.nothing(histories, kept)

    for position in range(1, longest + 1):
        beams = totals.size(1)
        limits = max_lengths[alive]
        of_rows = tokens.view(-1, 1), histories.flatten(0, 1)[:, : position - 1], alive.repeat_interleave(beams)
        ids, so_far, sentences = of_rows if asked is None else (x[asked] for x in of_rows)
        logits, state = step(ids, state)
        restrictions = so_far, sentences, forbidden, repetition, rules
        if terms:
            options = {
                "eos_id": eos_id,
                "beam_sizes": beam_sizes,
                "rooms": (limits - position).tolist(),
                "words": words,
            }
            log_probs = _restricted(logits, *restrictions).view(*totals.shape, -1)
            *chosen, progress = choose_each(progress, totals, log_probs, **options)
            ending, living = (Candidates(*rows) for rows in chosen)
            del log_probs
        else:
            ranking = _ranking(logits, *restrictions)
            ending, living = _continuations(totals, ranking, asked, eos_id, beam_size, groups, diversity)
            del ranking
        del logits  # most of all memory, which those of the next step then take again

        # Histories are filled up with end of sentence, so an ending one's ids are its parent's.
        scores = length.worth(ending.totals, position)
        if bonus is not None:
            scores = scores + bonus(state).view(-1, beams).gather(1, ending.parents)
        scores = scores.masked_fill((ending.totals == IMPOSSIBLE) | ~running[:, None], IMPOSSIBLE)
        finished.put(alive, scores, _pick(histories, ending.parents))
        totals, tokens = living.totals, living.tokens
        histories = _pick(histories, living.parents)
        histories[:, :, position - 1] = tokens
        unfinished.replace(alive, length.worth(totals, position), histories, running & (totals != IMPOSSIBLE).any(1))

        worst = finished.scores[alive, -1:]
        wins = worst == IMPOSSIBLE if beam_size == 1 else length.hope(totals, position, limits[:, None]) > worst
        running &= (limits > position) & wins.any(1)
        rows = living.parents + beams * torch.arange(len(alive), device=alive.device)[:, None]
        if spares:  # who cannot win goes on as if it were the best one, and as nothing to choose from
            wins &= running[:, None]
            totals = totals.masked_fill(~wins, IMPOSSIBLE)
            rows = torch.where(wins, rows, rows[:, :1])
        asked = None
        if position % check_every == 0 or position == longest:
            going = running.nonzero()[:, 0]  # the one wait for the device, or one of two
            if len(going) == 0:
                break
            if len(alive) - len(going) < len(alive) * LEAVING:
                going = torch.arange(len(alive), device=alive.device)
            alive, running, tokens, totals, histories, rows, wins = (
                x[going] for x in (alive, running, tokens, totals, histories, rows, wins)
            )
            if terms:
                progress, beam_sizes = ([x[i] for i in going.tolist()] for x in (progress, beam_sizes))
            if spares:
                asked = wins.flatten().nonzero()[:, 0]
                asked = asked if rows.numel() - len(asked) >= rows.numel() * SPARING else None
        state = state.select(rows)
        if asked is not None:
            state = state.only(asked)
    return _hypotheses(finished, unfinished, num_hypotheses, eos_id)


def score_targets(
    logits: Float[Tensor, "batch target vocabulary"],
    target_out: Int[Tensor, "batch target"],
    *,
    pad_id: int,
    forbidden_ids: Sequence[int] = (),
    length: LengthNormalisation = UNNORMALISED,
    repetition: float = 1.0,
) -> Float[Tensor, " batch"]:
    """The score a search gives to these targets (forced decoding), from the logits of one full pass.

    ``target_out`` ends in end of sentence where the target is finished, and is padded with ``pad_id``.

    :raises ValueError: the logits are NaN.
    """
    forbidden = target_out.new_tensor(forbidden_ids)
    total = torch.zeros(len(target_out), device=logits.device)
    for position, tokens in enumerate(target_out.unbind(1)):
        log_probs = normalised(logits[:, position].clone(), forbidden, target_out[:, :position], repetition)
        total += log_probs.gather(1, tokens[:, None])[:, 0].masked_fill(tokens == pad_id, 0.0)
    require_numbers(total)
    return length.worth(total, (target_out != pad_id).sum(1))


def require_numbers(scores: Tensor) -> None:
    """:raises ValueError: one is NaN. Waits for the device."""
    if scores.isnan().any():
        raise ValueError("the model returned NaN: its weights are damaged, or half precision overflowed (try 32 bits)")


def _restricted(
    logits: Float[Tensor, "asked vocabulary"],
    so_far: Int[Tensor, "asked length"],
    sentences: Int[Tensor, " asked"],
    forbidden: Int[Tensor, " forbidden"],
    repetition: float,
    rules: Sequence[Rule],
) -> Float[Tensor, "asked vocabulary"]:
    """Log-probabilities, of which the rules have taken some away. Writes to ``logits``."""
    log_probs = normalised(logits, forbidden, so_far, repetition)
    for rule in rules:
        rule(log_probs, so_far, sentences)
    return log_probs


def _ranking(
    logits: Tensor, so_far: Tensor, sentences: Tensor, forbidden: Tensor, repetition: float, rules: Sequence[Rule]
) -> Ranking:
    """The same, to find the best of."""
    if rules or not compiles(logits):
        return Blocks.of(_restricted(logits, so_far, sentences, forbidden, repetition, rules))
    return CompiledRanking.of(permitted(logits, forbidden, so_far, repetition))


def _continuations(
    totals: Float[Tensor, "sentences beams"],
    ranking: Ranking,
    asked: Int[Tensor, " asked"] | None,
    eos_id: int,
    beam_size: int,
    groups: int,
    diversity: float,
) -> tuple[Candidates, Candidates]:
    """Those that end here and count, among twice ``beam_size``, and ``beam_size`` that live on; the total of what is
    none is -inf."""
    beams = totals.size(1)
    rows = torch.arange(totals.numel(), device=totals.device).view_as(totals)  # of those ranked
    if asked is not None:
        rows = torch.zeros_like(rows).view(-1).index_copy(0, asked, rows.view(-1)[: len(asked)]).view_as(rows)
    share = beam_size // groups
    ending, living = [], []
    for first in range(0, beam_size, share):
        members = slice(first, first + share) if beams == beam_size else slice(None)  # at first all grow from one
        # Each parent may end in one way only, so twice the share leaves enough of both.
        found = ranking.best(totals[:, members], rows[:, members], 2 * share, first, eos_id)
        ranks = found.totals
        if first:
            taken = torch.cat([candidates.tokens for candidates in living], 1)
            ranks = ranks - diversity * (found.tokens[:, :, None] == taken[:, None]).sum(-1)
            ranks, order = ranks.topk(2 * share)
            found = Candidates(*(x.gather(1, order) for x in found))
        found = found._replace(parents=found.parents + (members.start or 0))
        ends = found.tokens == eos_id
        counts = ends & (ranks >= ranks[:, share - 1 : share])
        ending.append(found._replace(totals=found.totals.masked_fill(~counts, IMPOSSIBLE)))
        order = ranks.masked_fill(ends, IMPOSSIBLE).topk(share).indices
        found = found._replace(totals=found.totals.masked_fill(ends, IMPOSSIBLE))
        living.append(Candidates(*(x.gather(1, order) for x in found)))
    return _side_by_side(ending), _side_by_side(living)


def _side_by_side(groups: list[Candidates]) -> Candidates:
    return groups[0] if len(groups) == 1 else Candidates(*(torch.cat(x, 1) for x in zip(*groups, strict=True)))


class Found(NamedTuple):
    """The best hypotheses of every sentence so far, filled up with impossible ones; ids, with end of sentence."""

    scores: Float[Tensor, "sentences kept"]
    ids: Int[Tensor, "sentences kept length"]

    @classmethod
    def nothing(cls, like: Int[Tensor, "sentences 1 length"], kept: int) -> Found:
        ids = like.expand(-1, kept, -1).clone()
        return cls(torch.full(ids.shape[:2], IMPOSSIBLE, device=like.device), ids)

    def put(self, alive: Tensor, scores: Tensor, ids: Tensor) -> None:
        """Take in new ones of these sentences, where they are among the best."""
        scores, order = torch.cat([self.scores[alive], scores], 1).topk(self.scores.size(1))
        self.ids[alive] = _pick(torch.cat([self.ids[alive], ids], 1), order)
        self.scores[alive] = scores

    def replace(self, alive: Tensor, scores: Tensor, ids: Tensor, which: Tensor) -> None:
        """Forget those of these sentences for new ones, where ``which``."""
        kept = self.scores.size(1)
        self.scores[alive] = torch.where(which[:, None], scores[:, :kept], self.scores[alive])
        self.ids[alive] = torch.where(which[:, None, None], ids[:, :kept], self.ids[alive])


def _longest(max_lengths: Tensor) -> int:
    """The greatest limit, after a look at all of them."""
    limits = max_lengths.tolist()
    for limit in limits:
        if limit < 1:
            raise ValueError(f"max_length={limit} leaves no room for any token; it must be at least 1")
    return max(limits, default=0)


def normalised(logits: Tensor, forbidden: Tensor, so_far: Tensor, repetition: float) -> Tensor:
    """Normalised over all tokens that stand for text. Writes to ``logits``, which are as large as all else together."""
    logits = permitted(logits, forbidden, so_far, repetition)
    if logits.is_cpu and not logits.requires_grad:  # each row is read before it is written
        return torch.log_softmax(logits, -1, out=logits)
    return logits.log_softmax(-1)


def permitted(logits: Tensor, forbidden: Tensor, so_far: Tensor, repetition: float) -> Tensor:
    """The logits of what may be said, and not for the second time. Writes to ``logits``."""
    logits = logits.float()
    if repetition != 1.0:
        logits = repetition_penalty(logits, so_far, repetition)
    return logits.index_fill_(-1, forbidden, IMPOSSIBLE)


def _pick(ids: Tensor, order: Tensor) -> Tensor:
    return ids.gather(1, order[:, :, None].expand(-1, -1, ids.size(-1)))  # [B, X, T], [B, Y] -> [B, Y, T]


def _hypotheses(finished: Found, unfinished: Found, num_hypotheses: int, eos_id: int) -> list[list[Hypothesis]]:
    """Tensors as lists, best first, each once; unfinished ones where there are no others."""
    has_finished = finished.scores[:, :1] > IMPOSSIBLE
    scores = torch.where(has_finished, finished.scores, unfinished.scores)
    require_numbers(scores)
    ids = torch.where(has_finished[:, :, None], finished.ids, unfinished.ids)
    lengths = (ids != eos_id).sum(-1)
    found = []
    for rows, n, values, (end,) in zip(*(x.tolist() for x in (ids, lengths, scores, has_finished)), strict=True):
        distinct = {tuple(row[:k]): value for row, k, value in zip(rows, n, values, strict=True) if value > IMPOSSIBLE}
        best = sorted(distinct.items(), key=lambda pair: -pair[1])[:num_hypotheses]
        found.append([Hypothesis(list(tokens), value, end) for tokens, value in best])
    return found
