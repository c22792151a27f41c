"""Which texts are alike: Jaccard similarity of their 4-grams, candidates for it among millions by MinHash (Broder,
1997) in bands, and training texts that are like held-out ones by an inverted index.

All texts are compared as ``fold`` leaves them: case, spacing, punctuation and Unicode's other forms of a letter make no
difference. A character of Chinese, Japanese or Korean says as much as two letters, and counts as two.
"""

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import regex

GRAM = 4
LONG_GRAM = 8
"""Texts that share most of their 4-grams share many of these, and other texts hardly any."""

CJK = 0x2E80
"""Here the characters begin that count as two letters."""

BANDS = 12
FACTORS = np.random.default_rng(0).integers(1 << 32, size=(BANDS, 32), dtype=np.uint32) | np.uint32(1)
"""Odd ones, of which each puts all 32-bit hashes in another order; a band takes as many as it has rows."""

MARGIN = 0.2
"""The share of its 8-grams that a held-out text and one like it have in common, at least."""

SEEN_BITS = 22
"""A hash's first bits look it up in a table of the held-out ones', which fits into a processor's cache."""

AT_ONCE = 1000
"""Texts compared in one go: arrays stay small."""


class _Folding(dict):
    """What becomes of a character, by its code; found out when it is first met."""

    unwritten = regex.compile(r"[\p{Punctuation}\p{Separator}\p{Cc}\p{Cs}\p{Default_Ignorable_Code_Point}]")

    def __missing__(self, code: int) -> str | None:
        self[code] = None if self.unwritten.match(chr(code)) else chr(code).lower()
        return self[code]


FOLDING = _Folding()


def fold(text: str) -> str:
    """A text without case, spacing, punctuation, and Unicode's other forms of a letter, unless nothing else is left."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return text.translate(FOLDING) or text.strip()


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of two folded texts: of all their 4-grams, the share that stands in both."""
    grams, others = _grams(one), _grams(other)
    return len(grams & others) / len(grams | others)


def similarities(ones: Sequence[str], others: Sequence[str]) -> np.ndarray:
    """``similarity`` of each of the former and its counterpart, by hashes."""
    if not ones:
        return np.zeros(0)
    sets = []
    for texts in (ones, others):
        hashes, counts = _hashed_grams(texts, GRAM)
        couples = np.arange(len(texts), dtype=np.uint64).repeat(counts)
        sets.append(np.unique(couples << np.uint64(40) | hashes >> np.uint64(24)))
    one, other, both = (
        np.bincount(grams >> np.uint64(40), minlength=len(ones))
        for grams in (*sets, np.intersect1d(*sets, assume_unique=True))
    )
    return both / (one + other - both)


def near_keys(folded: Sequence[str], least: float) -> np.ndarray:
    """Keys [texts, 12 bands]: two texts as alike as ``least`` have the same key in one band or more, with a probability
    of 0.95; texts less alike have so more rarely. To compare pairs, join their sides.
    """
    rows = next(rows for rows in range(32, 0, -1) if rows == 1 or 1 - (1 - least**rows) ** BANDS >= 0.95)
    keys = np.zeros((len(folded), BANDS), dtype=np.uint64)
    for begin in range(0, len(folded), AT_ONCE):
        hashes, counts = _hashed_grams(folded[begin : begin + AT_ONCE], GRAM)
        hashes, texts = (hashes >> np.uint64(32)).astype(np.uint32), counts.cumsum() - counts
        for band, factors in zip(keys[begin : begin + AT_ONCE].T, FACTORS[:, :rows], strict=True):
            for factor in factors:
                band[:] = _mixed(band + np.minimum.reduceat(hashes * factor, texts))
    return keys


class NearOverlap:
    """``NearOverlap(held_out, 0.6).find(texts)``: which folded texts are as alike as this to a held-out one.

    Let two texts of one length have the similarity s. Then (1 - s) / (1 + s) of the 4-grams of one are not in the
    other, and of its 8-grams, where every change stands alone, 7 / 3 times as many. So a held-out text can be found by
    any such share of its 8-grams and some more; the rarest are taken. Texts that have some of them are compared.
    """

    def __init__(self, held_out: Iterable[str], least: float):
        self._least = least
        self._texts = list(dict.fromkeys(held_out)) or [""]
        hashes, self._lengths = _hashed_grams(self._texts, LONG_GRAM)
        owners = np.arange(len(self._texts)).repeat(self._lengths)
        _, gram, frequencies = np.unique(hashes, return_inverse=True, return_counts=True)
        rarest_first = np.lexsort((frequencies[gram], owners))
        rank = np.arange(len(hashes)) - (self._lengths.cumsum() - self._lengths).repeat(self._lengths)
        share = 7 / 3 * (1 - least) / (1 + least) + MARGIN
        taken = rarest_first[rank <= share * self._lengths[owners]]

        taken = taken[hashes[taken].argsort()]
        self._owners = owners[taken]
        self._hashes, self._begins, self._counts = np.unique(hashes[taken], return_index=True, return_counts=True)
        self._seen = np.zeros(1 << SEEN_BITS, dtype=bool)
        self._seen[self._hashes >> np.uint64(64 - SEEN_BITS)] = True

    def __reduce__(self):
        return NearOverlap, (self._texts, self._least)  # some hundred kilobytes, instead of eight megabytes

    def find(self, folded: Sequence[str]) -> np.ndarray:
        """A mask [texts]."""
        near = np.zeros(len(folded), dtype=bool)
        for begin in range(0, len(folded), AT_ONCE):
            texts = folded[begin : begin + AT_ONCE]
            rows, owners = self._candidates(texts)
            alike = similarities([texts[row] for row in rows], [self._texts[owner] for owner in owners])
            near[begin + rows[alike >= self._least]] = True
        return near

    def _candidates(self, folded: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the texts, and of the held-out texts that they may be like."""
        hashes, lengths = _hashed_grams(folded, LONG_GRAM)
        places = np.flatnonzero(self._seen[hashes >> np.uint64(64 - SEEN_BITS)])  # most others end here
        rows = np.searchsorted(lengths.cumsum(), places, side="right")
        found = np.searchsorted(self._hashes, hashes[places]).clip(max=len(self._hashes) - 1)
        known = (self._hashes[found] == hashes[places]) & (lengths[rows] * self._least <= self._lengths.max())
        rows, found = rows[known], found[known]

        counts = self._counts[found]
        within = np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)
        owners = self._owners[self._begins[found].repeat(counts) + within]
        couples, shared = np.unique(rows.repeat(counts) * len(self._texts) + owners, return_counts=True)
        rows, owners = np.divmod(couples, len(self._texts))
        likely = shared >= MARGIN * np.maximum(lengths[rows], self._lengths[owners])
        return rows[likely], owners[likely]


def _grams(folded: str) -> set[str]:
    letters = "".join([letter * 2 if ord(letter) >= CJK else letter for letter in folded.ljust(GRAM)])
    return {letters[begin : begin + GRAM] for begin in range(len(letters) - GRAM + 1)}


def _hashed_grams(folded: Sequence[str], size: int) -> tuple[np.ndarray, np.ndarray]:
    """64-bit hashes of all runs of ``size`` letters, a power of two, text after text; and how many each text has, one
    at least."""
    padded = [text.ljust(size) for text in folded]
    letters = np.frombuffer("".join(padded).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    lengths = np.fromiter(map(len, padded), dtype=np.int64, count=len(padded))
    wide = letters >= CJK
    if wide.any():
        lengths += np.add.reduceat(wide.astype(np.int64), lengths.cumsum() - lengths)
        letters = letters.repeat(1 + wide)

    hashes = letters.astype(np.uint64)
    reach = 1
    while reach < size:
        hashes = _mixed(hashes[:-reach] * np.uint64(0x9E3779B97F4A7C15) + hashes[reach:])
        reach *= 2
    whole = np.ones(len(hashes), dtype=bool)
    ends = lengths.cumsum()[:-1]
    for letter in range(1, size):
        whole[ends - letter] = False
    return hashes[whole], lengths - size + 1


def _mixed(values: np.ndarray) -> np.ndarray:
    """Every bit of a value made to depend on all (the middle of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(27))
