"""Other segmentations of the same text: subword regularisation (Kudo, 2018) and BPE-dropout (Provilkov et al., 2020).

SentencePiece draws from the same distributions, but from random numbers that nobody can seed. Here the caller brings
them, so what training reads is a function of its position. Words are cut one by one, and what was found out about a
word is kept for the next time.
"""

import math
import re
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate, pairwise

from pipeline.data.pieces import kind, types
from pipeline.data.tokenizer import UNK_ID, Tokenizer

NORMAL, USER_DEFINED = 1, 4
"""Types of pieces."""

UNKNOWN = -10.0
"""Added to the least score of a piece for a character without one, as in SentencePiece."""

REFUSED = -math.inf
"""The score of two neighbours that are no piece together, or whose merge was left out."""

KEPT = 200_000
"""Places in words that are remembered at a time, some 100 MB of them."""

Draw = Callable[[], float]
"""Random numbers in [0, 1)."""


def sampler(tokenizer: Tokenizer, regularisation: float) -> "Sampler":
    """What cuts text as ``TokenizerConfig.regularisation`` says, by the kind of the tokenizer's model.

    Raises:
        ValueError: the model is of another kind.
    """
    samplers = {"unigram": SubwordRegularisation, "bpe": BpeDropout}
    if (its_kind := kind(tokenizer.model)) not in samplers:
        raise ValueError(
            f"tokenizer.regularisation={regularisation} needs a model of kind unigram or bpe, not {its_kind}: set it "
            "to 0"
        )
    return samplers[its_kind](tokenizer, regularisation)


class Sampler:
    """Text to the ids of one of its segmentations."""

    def __init__(self, tokenizer: Tokenizer, regularisation: float):
        self.tokenizer, self.regularisation = tokenizer, regularisation
        processor = tokenizer.processor
        of_type: dict[int, dict[str, int]] = {NORMAL: {}, USER_DEFINED: {}}
        for id, type in enumerate(types(tokenizer.model)):
            of_type.get(type, {})[processor.id_to_piece(id)] = id
        self.ids, self.symbols = of_type[NORMAL], of_type[USER_DEFINED]
        self.scores = {piece: processor.get_score(id) for piece, id in self.ids.items()}
        self.longest, self.unknown = max(map(len, self.ids)), min(self.scores.values()) + UNKNOWN
        self.byte_ids = {byte: id for id, byte in tokenizer.bytes.items()}
        symbols = "|".join(map(re.escape, sorted(self.symbols, key=len, reverse=True)))
        alone = not any("▁" in piece[1:] for piece in self.ids)  # no piece goes on after a blank
        letter = f"(?!{symbols})" * bool(symbols) + ("[^▁]" if alone else ".")
        self.words = re.compile("|".join(filter(None, (symbols, f"▁?(?:{letter})+|▁"))))
        self.known: dict[str, list] = {}
        self.num_kept = 0

    def __reduce__(self):
        return type(self), (self.tokenizer, self.regularisation)

    def __call__(self, text: str, draw: Draw) -> list[int]:
        """Ids of the pieces of a text that ``normalise`` has seen."""
        if self.num_kept > KEPT:
            self.known.clear()
            self.num_kept = 0
        ids: list[int] = []
        for word in self.words.findall(self.tokenizer.processor.normalize(text)):
            if word in self.symbols:
                ids.append(self.symbols[word])
                continue
            if word not in self.known:
                self.known[word] = self.look_at(word)
            ids += self.cut(self.known[word], draw)
        if UNK_ID in ids:  # of several in a row, one stays
            ids = [id for id, before in zip(ids, [None, *ids], strict=False) if not id == before == UNK_ID]
        return ids

    def look_at(self, word: str) -> list:
        """All that ``cut`` needs to know of a word."""
        raise NotImplementedError

    def cut(self, word: list, draw: Draw) -> list[int]:
        """Ids of one segmentation of a word that was looked at."""
        raise NotImplementedError

    def spelt(self, piece: str) -> list[int]:
        """The ids of a piece, or of a character that is none."""
        if piece in self.ids:
            return [self.ids[piece]]
        return [self.byte_ids[byte] for byte in piece.encode()] if self.byte_ids else [UNK_ID]


class SubwordRegularisation(Sampler):
    """Each segmentation with its probability under the unigram model to the power of ``regularisation``.

    Forward filtering, backward sampling: of a word is known, for each place, the sum of the weights of all ways there,
    by their last piece.
    """

    def look_at(self, word: str) -> list:
        totals, lattice = [0.0], [None]  # logarithms; a place's pieces
        for end in range(1, len(word) + 1):
            pieces = [word[begin:end] for begin in range(max(0, end - self.longest), end)]
            pieces = [piece for piece in pieces if piece in self.ids or len(piece) == 1]
            weights = [
                totals[end - len(piece)] + self.regularisation * self.scores.get(piece, self.unknown)
                for piece in pieces
            ]
            most = max(weights)
            sums = list(accumulate(math.exp(weight - most) for weight in weights))
            totals.append(most + math.log(sums[-1]))
            lattice.append((sums, [(end - len(piece), self.spelt(piece)) for piece in pieces]))
        self.num_kept += len(word)
        return lattice

    def cut(self, word: list, draw: Draw) -> list[int]:
        place, pieces = len(word) - 1, []
        while place:
            sums, ways = word[place]
            place, ids = ways[bisect(sums, draw() * sums[-1], hi=len(sums) - 1)]
            pieces.append(ids)
        return [id for ids in reversed(pieces) for id in ids]


class BpeDropout(Sampler):
    """Every merge that comes up is left out with the probability ``regularisation``.

    Of a word is known the tree of what may happen to it, as far as it has happened: [after a merge, after leaving it
    out, ids in the end or None, parts, the score of each pair of neighbours].
    """

    def look_at(self, word: str) -> list:
        parts = list(word)
        return self._node(parts, [self.scores.get(pair, REFUSED) for pair in map("".join, pairwise(parts))])

    def cut(self, word: list, draw: Draw) -> list[int]:
        node, dropout = word, self.regularisation
        while node[2] is None:
            left_out = draw() < dropout
            node = node[left_out] or self._grow(node, left_out)
        return node[2]

    def _node(self, parts: list[str], scores: list[float]) -> list:
        self.num_kept += 1
        mergeable = scores and max(scores) > REFUSED
        return [None, None, None if mergeable else [id for part in parts for id in self.spelt(part)], parts, scores]

    def _grow(self, node: list, left_out: bool) -> list:
        *_, parts, scores = node
        place = scores.index(max(scores))  # the best pair, and of equal ones the first
        if left_out:
            scores = scores.copy()
            scores[place] = REFUSED
        else:
            parts = [*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]]
            scores = scores[:place] + scores[place + 1 :]
            for neighbour in range(max(0, place - 1), min(place + 1, len(scores))):  # pairs with it are new ones
                scores[neighbour] = self.scores.get(parts[neighbour] + parts[neighbour + 1], REFUSED)
        node[left_out] = self._node(parts, scores)
        return node[left_out]
