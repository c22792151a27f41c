"""Greedy and beam search over any step function: the search knows rows, tokens and probabilities, never a model.

A step takes the last token of every row and the state, and returns next-token logits and the new state. The state
needs one method, ``select(rows)``: go on with these rows. The sentences of a batch advance together, but what is kept
of a sentence depends on that sentence alone, and one that is done leaves the batch.

The score of a hypothesis is the sum of its tokens' log-probabilities divided by length ** length_penalty; both count
the end-of-sentence token where there is one. Log-probabilities are negative, so a higher penalty favours longer
output; 0 is neutral, 1 gives the mean log-probability of a token. Probabilities are normalised over the allowed tokens:
forbidden ones are removed before the softmax. Scores are kept in float32 whatever the model computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

IMPOSSIBLE = float("-inf")


@runtime_checkable
class State(Protocol):
    def select(self, rows: Int[Tensor, "sentences beams"]) -> State:
        """The state of these rows; rows of one sentence stay together, sentences keep their order, some may go."""


S = TypeVar("S", bound=State)
Step = Callable[[Int[Tensor, "rows 1"], S], tuple[Float[Tensor, "rows vocabulary"], S]]
"""(last tokens, state) -> (logits of the next token, state). Log-probabilities are logits too."""


class Hypothesis(NamedTuple):
    ids: list[int]
    """Tokens, without begin and end of sentence."""

    score: float
    """Length-normalised log-probability, end of sentence counted."""

    finished: bool
    """False: the length limit stopped it, and its last token is an ordinary one."""


@torch.no_grad()
def greedy_search(
    step: Step,
    state: State,
    max_lengths: Int[Tensor, " sentences"],
    *,
    bos_id: int,
    eos_id: int,
    forbidden_ids: Sequence[int] = (),
    length_penalty: float = 0.0,
    min_length: int = 0,
) -> list[list[Hypothesis]]:
    """The most probable next token, again and again, until end of sentence or the limit.

    Arguments, result and errors are those of :func:`beam_search`, with one hypothesis a sentence; ``length_penalty``
    changes its score only.
    """
    longest = _check_lengths(min_length, max_lengths)
    alive = torch.arange(len(max_lengths), device=max_lengths.device)  # sentences still running, B of them
    banned = alive.new_tensor([*forbidden_ids, eos_id])
    tokens = alive.new_full((len(alive), 1), bos_id)
    ids = alive.new_full((len(alive), 1, longest), eos_id)
    totals = torch.zeros(len(alive), 1, device=alive.device, dtype=torch.float32)

    for length in range(1, longest + 1):
        logits, state = step(tokens, state)
        log_probs = _allow(logits, banned if length <= min_length else banned[:-1]).log_softmax(-1)
        best, tokens = log_probs.max(-1, keepdim=True)
        totals[alive] += best
        ids[alive, :, length - 1] = tokens

        going = ((tokens[:, 0] != eos_id) & (max_lengths[alive] > length)).nonzero()  # the one wait for the device
        if len(going) == 0:
            break
        if len(going) < len(alive):
            alive, tokens, state = alive[going[:, 0]], tokens[going[:, 0]], state.select(going)
    lengths = ((ids != eos_id).sum(-1) + 1).minimum(max_lengths[:, None])
    return _hypotheses(ids, totals / lengths**length_penalty, max_lengths, eos_id)


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
    length_penalty: float = 0.0,
    min_length: int = 0,
    num_hypotheses: int = 1,
) -> list[list[Hypothesis]]:
    """The best hypotheses of every sentence, best first: one to ``num_hypotheses`` of them.

    At every length the ``beam_size`` best unfinished hypotheses live on, and an ending one counts if it is among the
    ``beam_size`` best of its length. A sentence is done when no living hypothesis, however it goes on, could beat the
    last of its ``num_hypotheses`` best finished ones; asking for more therefore never changes the first. Hypotheses
    stopped by the limit are returned only where none has finished. One beam is greedy search: the first end of
    sentence is final.

    Args:
        step, state: see the module. ``state`` comes with one row a sentence; the search widens it.
        max_lengths: the most tokens of each sentence, end of sentence counted; on the model's device.
        forbidden_ids: tokens never to be generated, such as padding and begin of sentence.
        length_penalty: see the module; higher is longer, 0 is neutral.
        min_length: the fewest tokens before the end of sentence.

    Raises:
        ValueError: for contradictory lengths or counts, and for a step that returns NaN.
    """
    if not 1 <= num_hypotheses <= beam_size:
        raise ValueError(f"num_hypotheses={num_hypotheses} must lie between 1 and beam_size={beam_size}")
    options = {"bos_id": bos_id, "eos_id": eos_id, "forbidden_ids": forbidden_ids}
    if beam_size == 1:
        options |= {"length_penalty": length_penalty, "min_length": min_length}
        return greedy_search(step, state, max_lengths, **options)

    longest = _check_lengths(min_length, max_lengths)
    alive = torch.arange(len(max_lengths), device=max_lengths.device)  # sentences still running, B of them
    banned = alive.new_tensor([*forbidden_ids, eos_id])
    tokens = alive.new_full((len(alive), 1), bos_id)
    totals = torch.zeros(len(alive), 1, device=alive.device, dtype=torch.float32)
    histories = alive.new_full((len(alive), 1, longest), eos_id)
    found_scores = totals.new_full((len(alive), num_hypotheses), IMPOSSIBLE)
    found_ids = alive.new_full((len(alive), num_hypotheses, longest), eos_id)

    for length in range(1, longest + 1):
        sentences, beams = totals.shape
        logits, state = step(tokens.view(-1, 1), state)
        log_probs = _allow(logits, banned if length <= min_length else banned[:-1]).log_softmax(-1)

        # Each beam may end in one way, so of twice beam_size candidates at least beam_size go on.
        candidates = (totals.view(-1, 1) + log_probs).view(sentences, -1)  # [B * beams, V] -> [B, beams * V]
        candidates, order = candidates.topk(min(2 * beam_size, candidates.size(1)))
        parents, tokens = order // log_probs.size(-1), order % log_probs.size(-1)
        ends = tokens == eos_id

        # Histories are filled up with end of sentence, so an ending candidate's ids are its parent's.
        scores = (candidates / length**length_penalty).masked_fill(~ends, IMPOSSIBLE)[:, :beam_size]
        scores, order = torch.cat([found_scores[alive], scores], 1).topk(num_hypotheses)
        ids = _pick(torch.cat([found_ids[alive], _pick(histories, parents[:, :beam_size])], 1), order)

        totals, order = candidates.masked_fill(ends, IMPOSSIBLE).topk(min(beam_size, candidates.size(1)))
        tokens, parents = tokens.gather(1, order), parents.gather(1, order)
        histories = _pick(histories, parents)
        histories[:, :, length - 1] = tokens

        limits = max_lengths[alive]
        empty_handed = ((limits == length) & (scores[:, 0] == IMPOSSIBLE))[:, None]
        n = min(num_hypotheses, totals.size(1))
        scores[:, :n] = torch.where(empty_handed, totals[:, :n] / length**length_penalty, scores[:, :n])
        ids[:, :n] = torch.where(empty_handed[:, :, None], histories[:, :n], ids[:, :n])
        found_scores[alive], found_ids[alive] = scores, ids

        # Totals only fall, so what a hypothesis may still score is its total over the best length left to it: the
        # greatest under a positive penalty, the next under a negative one.
        hope = totals[:, 0] / (limits**length_penalty if length_penalty > 0 else (length + 1) ** length_penalty)
        going = ((limits > length) & ~(hope <= scores[:, -1])).nonzero()[:, 0]  # the one wait for the device
        if len(going) == 0:
            break
        state = state.select(going[:, None] * beams + parents[going])
        alive, tokens, totals, histories = alive[going], tokens[going], totals[going], histories[going]
    return _hypotheses(found_ids, found_scores, max_lengths, eos_id)


def score_targets(
    logits: Float[Tensor, "batch target vocabulary"],
    target_out: Int[Tensor, "batch target"],
    *,
    pad_id: int,
    eos_id: int,
    forbidden_ids: Sequence[int] = (),
    length_penalty: float = 0.0,
    min_length: int = 0,
) -> Float[Tensor, " batch"]:
    """The score a search gives to these targets (forced decoding), from the logits of one full pass.

    ``target_out`` ends in end of sentence where the target is finished, and is padded with ``pad_id``.
    """
    banned = target_out.new_tensor([*forbidden_ids, eos_id])
    early, late = _allow(logits[:, :min_length], banned), _allow(logits[:, min_length:], banned[:-1])
    log_probs = torch.cat([early, late], 1).log_softmax(-1).gather(-1, target_out[:, :, None])[:, :, 0]
    real = target_out != pad_id
    return log_probs.masked_fill(~real, 0.0).sum(1) / real.sum(1) ** length_penalty


def _check_lengths(min_length: int, max_lengths: Tensor) -> int:
    """The greatest limit, after a look at all of them."""
    limits = max_lengths.tolist()
    for limit in limits:
        if limit < 1:
            raise ValueError(f"max_length={limit} leaves no room for any token; it must be at least 1")
        if limit < min_length:
            raise ValueError(f"min_length={min_length} exceeds max_length={limit}; lower one or raise the other")
    return max(limits, default=0)


def _allow(logits: Tensor, banned: Tensor) -> Tensor:
    return logits.float().index_fill(-1, banned, IMPOSSIBLE)


def _pick(ids: Tensor, order: Tensor) -> Tensor:
    return ids.gather(1, order[:, :, None].expand(-1, -1, ids.size(-1)))  # [B, X, T], [B, Y] -> [B, Y, T]


def _hypotheses(ids: Tensor, scores: Tensor, max_lengths: Tensor, eos_id: int) -> list[list[Hypothesis]]:
    """Tensors [B, n, T] and [B, n] as lists. A hypothesis that fills its limit has no end of sentence: unfinished."""
    if scores.isnan().any():
        raise ValueError("the model returned NaN: its weights are damaged, or half precision overflowed (try fp32)")
    lengths = (ids != eos_id).sum(-1)
    finished = lengths < max_lengths[:, None]
    found = zip(ids.tolist(), lengths.tolist(), scores.tolist(), finished.tolist(), strict=True)
    return [
        [Hypothesis(row[:n], score, end) for row, n, score, end in zip(*sentence, strict=True) if score > IMPOSSIBLE]
        for sentence in found
    ]
