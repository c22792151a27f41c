"""Sampling: translations drawn by their probability, over any step function.

A sample is decided by the model, the seed of its sentence and its number: what else is in the batch, in which order,
and how many are drawn change nothing. Every token is drawn by inverting the distribution function, in the order of the
vocabulary (so that rounding moves a border by a hair and never exchanges two tokens), at a number that is a hash of
seed, number of the sample and position.

``temperature``, ``top_k``, ``top_p`` and rules shape what is drawn. The score of a sample is that of forced decoding
all the same: what the model itself gives it.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.length import LengthNormalisation
from models.rules import IMPOSSIBLE, Rule
from models.search import Hypothesis, State, Step, normalised, require_numbers


@torch.no_grad()
def sample(
    step: Step,
    state: State,
    max_lengths: Int[Tensor, " sentences"],
    *,
    num_hypotheses: int,
    bos_id: int,
    eos_id: int,
    seeds: Sequence[int],
    length: LengthNormalisation,
    forbidden_ids: Sequence[int] = (),
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition: float = 1.0,
    rules: Sequence[Rule] = (),
) -> list[list[Hypothesis]]:
    """``num_hypotheses`` independent translations of every sentence, best first; the same one may come several times.

    A sample that meets its limit is unfinished. One that rules leave without a next token is left out.

    Args:
        step, state, max_lengths, forbidden_ids, length, repetition, rules: as in :func:`models.search.beam_search`.
        seeds: one for each sentence, below 2**63.
        temperature: less than 1 sharpens the distribution, more flattens it.
        top_k: draw only among so many most probable tokens; 0 is all.
        top_p: draw only among the fewest most probable tokens that together have at least this probability.

    Raises:
        ValueError: for a step that returns NaN.
    """
    num_sentences, longest = len(max_lengths), max(max_lengths.tolist(), default=0)
    alive = torch.arange(num_sentences, device=max_lengths.device)  # sentences still running, B of them
    numbers = torch.arange(num_hypotheses, device=alive.device).expand(num_sentences, -1)  # [B, running samples]
    seeds, forbidden = alive.new_tensor(seeds), alive.new_tensor(forbidden_ids)
    ids = alive.new_full((num_sentences, num_hypotheses, longest), eos_id)
    totals = torch.zeros(num_sentences, num_hypotheses, device=alive.device, dtype=torch.float32)
    tokens = torch.full_like(numbers, bos_id)
    running = torch.ones_like(numbers, dtype=torch.bool)
    state = state.select(alive[:, None].expand(-1, num_hypotheses))

    for position in range(longest):
        logits, state = step(tokens.reshape(-1, 1), state)
        place = (alive[:, None], numbers)
        so_far = ids[place].flatten(0, 1)[:, :position]
        log_probs = normalised(logits, forbidden, so_far, repetition)
        for rule in rules:
            rule(log_probs, so_far, alive.repeat_interleave(numbers.size(1)))
        likely = most_probable(log_probs / temperature, top_k, top_p)
        tokens = draw(likely, uniform(seeds[alive, None], numbers, position).flatten())[:, None]
        gains, tokens = log_probs.gather(1, tokens).view_as(numbers), tokens.view_as(numbers)
        ids[(*place, position)] = tokens.where(running, eos_id)
        totals[place] += gains.where(running, 0.0)
        running &= (tokens != eos_id) & (gains > IMPOSSIBLE) & (max_lengths[alive, None] > position + 1)

        counts = running.sum(1).tolist()  # the one wait for the device
        if not any(counts):
            break
        if max(counts) < numbers.size(1) or 0 in counts:  # those that run move to the front, the others leave
            going = running.any(1).nonzero()
            order = running.argsort(dim=1, descending=True, stable=True)[going[:, 0], : max(counts)]
            state = state.select(going * numbers.size(1) + order)
            alive = alive[going[:, 0]]
            tokens, numbers, running = (x[going, order] for x in (tokens, numbers, running))

    require_numbers(totals)
    sizes = (ids != eos_id).sum(-1)
    scores = length.worth(totals, (sizes + 1).minimum(max_lengths[:, None]))
    finished = sizes < max_lengths[:, None]
    found = zip(*(x.tolist() for x in (ids, sizes, scores, finished)), strict=True)
    return [
        sorted(
            (
                Hypothesis(row[:n], score, end)
                for row, n, score, end in zip(*sentence, strict=True)
                if score > IMPOSSIBLE
            ),
            key=lambda hypothesis: -hypothesis.score,
        )
        for sentence in found
    ]


def most_probable(
    logits: Float[Tensor, "rows vocabulary"], top_k: int, top_p: float
) -> Float[Tensor, "rows vocabulary"]:
    """-inf for all but the ``top_k`` most probable tokens (0: all), and of these the fewest that have ``top_p`` of
    their probability: the one that crosses ``top_p`` stays (Holtzman et al., 2020)."""
    vocabulary = logits.size(-1)
    if not 0 < top_k < vocabulary and top_p == 1:
        return logits
    best, order = logits.topk(min(top_k or vocabulary, vocabulary))
    if top_p < 1:
        probabilities = best.softmax(-1)
        best = best.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, IMPOSSIBLE)
    return torch.full_like(logits, IMPOSSIBLE).scatter(-1, order, best)


def draw(logits: Float[Tensor, "rows vocabulary"], numbers: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """The token at which the distribution function passes each of these numbers, which lie in [0, 1)."""
    distribution = logits.double().softmax(-1).cumsum(-1)
    passed = numbers[:, None] * distribution[:, -1:]
    return torch.searchsorted(distribution, passed, right=True)[:, 0].clamp(max=logits.size(-1) - 1)


def uniform(
    seeds: Int[Tensor, "#sentences #samples"], samples: Int[Tensor, "#sentences #samples"], position: int
) -> Float[Tensor, "sentences samples"]:
    """A number in [0, 1) that depends on these three alone, by the hash of SplitMix64 (Steele et al., 2014)."""
    return (_hash(_hash(_hash(seeds) + samples) + position) >> 11 & 2**53 - 1).double() / 2**53


def _hash(x: Tensor) -> Tensor:
    """SplitMix64's; its arithmetic is that of 64-bit integers, which wrap."""
    x = x + (0x9E3779B97F4A7C15 - 2**64)
    x = (x ^ (x >> 30 & 2**34 - 1)) * (0xBF58476D1CE4E5B9 - 2**64)
    x = (x ^ (x >> 27 & 2**37 - 1)) * (0x94D049BB133111EB - 2**64)
    return x ^ (x >> 31 & 2**33 - 1)
