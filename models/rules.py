"""What a translation may not be: rules that forbid continuations while a search goes on.

A rule narrows the space that is searched, never the model. What it forbids becomes impossible *after* the softmax, so
whatever is found keeps the score that the model gives it, the same as in forced decoding. The one exception comes
before the softmax, since it does change the model: ``repetition_penalty``.

A row in which nothing is left is a hypothesis that cannot go on.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

IMPOSSIBLE = float("-inf")
ANY, NOTHING = -1, -2  # no tokens: what fits every token, and what fits none

Rule = Callable[[Float[Tensor, "rows vocabulary"], Int[Tensor, "rows length"], Int[Tensor, " rows"]], None]
"""(log-probabilities, tokens so far without begin of sentence, number of the sentence in the batch) of every row: sets
the log-probabilities of what is forbidden to -inf, in place."""


class MinLength:
    """No translation of less than ``min_length`` tokens, the end of sentence counted as in every length."""

    def __init__(self, min_length: int, eos_id: int):
        self.min_length, self.eos_id = min_length, eos_id

    def __call__(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> None:
        if ids.size(1) + 1 < self.min_length:
            log_probs[:, self.eos_id] = IMPOSSIBLE


class NoRepeatNgram:
    """No sequence of ``n`` tokens occurs twice (Paulus et al., 2018). The end of sentence is always free."""

    def __init__(self, n: int):
        self.n = n

    def __call__(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> None:
        if ids.size(1) < self.n:
            return
        start = ids.size(1) - self.n + 1
        places = ids.unfold(1, self.n, 1)  # [N, T] -> [N, T - n + 1, n]: what has been said
        repeats = (places[:, :, :-1] == ids[:, None, start:]).all(-1)
        _forbid(log_probs, places[:, :, -1], repeats)


class BannedPhrases:
    """None of these sequences of tokens occurs.

    A word that can be cut into tokens in several ways is banned by giving every way as a phrase.

    :raises ValueError: a phrase is empty.
    """

    def __init__(self, phrases: Sequence[Sequence[int]], device: torch.device | None = None):
        if not all(phrases):
            raise ValueError("a banned phrase has no tokens: leave it out")
        self.longest = max(map(len, phrases), default=0)
        padded = [[ANY] * (self.longest - len(phrase)) + list(phrase) for phrase in phrases]
        self.phrases = torch.tensor(padded, dtype=torch.long, device=device)  # [P, longest], aligned at the end

    def __call__(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> None:
        if not self.longest:
            return
        context = self.longest - 1
        recent = torch.nn.functional.pad(ids, (context, 0), value=NOTHING)[:, ids.size(1) :]  # [N, context]
        begins = self.phrases[:, :-1]
        said = ((begins == recent[:, None]) | (begins == ANY)).all(-1)  # [N, P]: all but the last token of the phrase
        _forbid(log_probs, self.phrases[:, -1].expand(len(ids), -1), said)


class ForcedPrefix:
    """Every translation begins with the prefix of its sentence, which may be empty.

    The prefix is what was asked for, even where other rules would not allow it: it is given those rules, and applies
    them where it no longer decides itself.
    """

    def __init__(
        self, prefixes: Sequence[Sequence[int]], rules: Sequence[Rule] = (), device: torch.device | None = None
    ):
        self.rules = rules
        self.longest = max(map(len, prefixes), default=0)
        padded = [[*prefix, *[ANY] * (self.longest - len(prefix))] for prefix in prefixes]
        self.prefixes = torch.tensor(padded, dtype=torch.long, device=device)  # [sentences, longest]

    def __call__(self, log_probs: Tensor, ids: Tensor, sentences: Tensor) -> None:
        position = ids.size(1)
        if position >= self.longest:
            for rule in self.rules:
                rule(log_probs, ids, sentences)
            return
        asked = self.prefixes[sentences, position, None]  # [N, 1]
        token = asked.clamp(min=0)
        log_prob = log_probs.gather(1, token)
        for rule in self.rules:
            rule(log_probs, ids, sentences)
        forced = asked != ANY
        log_prob = torch.where(forced, log_prob, log_probs.gather(1, token))
        log_probs.masked_fill_(forced, IMPOSSIBLE).scatter_(1, token, log_prob)


def repetition_penalty(
    logits: Float[Tensor, "rows vocabulary"], ids: Int[Tensor, "rows length"], penalty: float
) -> Float[Tensor, "rows vocabulary"]:
    """Tokens that have occurred become less likely: positive logits are divided by ``penalty``, negative ones
    multiplied (Keskar et al., 2019). It depends on where a model puts the zero of its logits, which softmax does not.
    """
    said = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(said > 0, said / penalty, said * penalty))


def _forbid(log_probs: Tensor, tokens: Tensor, where: Tensor) -> None:
    """Forbid of every row those of its tokens, [N, X], where it holds; a token may come several times."""
    highest = torch.where(where, IMPOSSIBLE, float("inf")).to(log_probs.dtype)
    log_probs.scatter_reduce_(1, tokens, highest, "amin")
