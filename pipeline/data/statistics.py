"""What a corpus looks like, in numbers that add up: statistics of two batches are those of both together.

Lengths, ratios and characters are counted of every pair. What is dear or long is looked at in a sample: the pairs
with the smallest checksums, so that it is the same however the corpus was cut into batches.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

SAMPLE = 1000
"""Pairs in the sample, at most: a share is then known within three points of a hundred."""

EXTREMES = 3
"""Pairs that are kept of the longest, and of the most unlike in length."""

LONGEST_QUOTE = 300
"""Characters of a side that the sample and the extremes keep."""

LENGTHS = np.concatenate([np.arange(32), *(2**doubling * np.arange(16, 32) for doubling in range(1, 13))]).astype(float)
"""Where bins of lengths begin: every number up to 31, then sixteen to each doubling, up to 131,072."""

RATIOS = np.concatenate([[0], 2 ** np.arange(-4 - 1 / 16, 4 + 1 / 8, 1 / 8)])
"""Where bins of ratios begin: eight to each doubling, with one around 1; the outer ones hold all beyond 16 to 1."""


@dataclass
class Histogram:
    """How many numbers fall into each bin; ``edges`` are the bins' beginnings."""

    edges: np.ndarray
    counts: np.ndarray
    total: float = 0
    largest: float = 0

    @classmethod
    def of(cls, numbers: np.ndarray, edges: np.ndarray) -> Histogram:
        bins = np.searchsorted(edges, numbers, side="right") - 1
        counts = np.bincount(bins, minlength=len(edges))
        return cls(edges, counts, numbers.sum().item(), numbers.max(initial=0).item())

    def __iadd__(self, other: Histogram) -> Histogram:
        self.counts = self.counts + other.counts
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        return self

    @property
    def mean(self) -> float:
        return self.total / max(1, int(self.counts.sum()))

    def quantile(self, share: float) -> float:
        """A number that this share of all does not exceed; where a bin is wider than one number, its beginning."""
        reached = int(np.searchsorted(self.counts.cumsum(), share * self.counts.sum()))
        return self.edges[min(reached, len(self.edges) - 1)].item() if self.counts.any() else 0.0

    def as_dict(self) -> dict[str, Any]:
        used = np.flatnonzero(self.counts)
        first, last = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return {
            "total": self.total,
            "mean": round(self.mean, 2),
            "ten_percent": self.quantile(0.1),
            "median": self.quantile(0.5),
            "ninety_percent": self.quantile(0.9),
            "largest": self.largest,
            "first_bin": first,
            "counts": self.counts[first:last].tolist(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], edges: np.ndarray) -> Histogram:
        counts = np.zeros(len(edges), dtype=np.int64)
        counts[values["first_bin"] :][: len(values["counts"])] = values["counts"]
        return cls(edges, counts, values["total"], values["largest"])


@dataclass
class Side:
    """One side of the pairs."""

    characters: Histogram
    """Lengths in characters."""

    words: Histogram
    """Lengths in what stands between blanks."""

    alphabet: Counter[str]
    """How often every character occurs, blanks apart."""

    @classmethod
    def of(cls, texts: list[str]) -> Side:
        words = np.fromiter((text.count(" ") + 1 for text in texts), float, len(texts))
        return cls(Histogram.of(_lengths(texts), LENGTHS), Histogram.of(words, LENGTHS), _alphabet(texts))

    def __iadd__(self, other: Side) -> Side:
        self.characters += other.characters
        self.words += other.words
        self.alphabet += other.alphabet
        return self

    def as_dict(self) -> dict[str, Any]:
        return {
            "characters": self.characters.as_dict(),
            "words": self.words.as_dict(),
            "alphabet": dict(self.alphabet.most_common()),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Side:
        characters, words = (Histogram.from_dict(values[name], LENGTHS) for name in ("characters", "words"))
        return cls(characters, words, Counter(values["alphabet"]))


Quote = tuple[float, str, str]
"""A rank, of which the lowest come first, and both sides of a pair, cut after ``LONGEST_QUOTE`` characters."""


@dataclass
class Statistics:
    """Counts over sentence pairs; ``statistics += other`` merges. Memory does not grow with the pairs."""

    source: Side
    target: Side
    ratio: Histogram
    """Characters of the target to one of the source."""

    sample: list[Quote]
    """The pairs with the smallest checksums."""

    extremes: dict[str, list[Quote]]
    """The longest pairs, and those one of whose sides is the longest beside the other."""

    @classmethod
    def of(cls, sources: list[str], targets: list[str]) -> Statistics:
        source, target = _lengths(sources), _lengths(targets)
        ratios = np.round(1024 * target / np.maximum(1, source)) / 1024  # such sums do not depend on the order
        checksums = (
            zlib.crc32(target.encode("utf-8", "replace"), zlib.crc32(source.encode("utf-8", "replace")))
            for source, target in zip(sources, targets, strict=True)
        )
        ranks = {
            "longest": -(source + target),
            "source_longer": -(source + 10) / (target + 10),
            "target_longer": -(target + 10) / (source + 10),
        }
        return cls(
            Side.of(sources),
            Side.of(targets),
            Histogram.of(ratios, RATIOS),
            _quotes(np.fromiter(checksums, float, len(sources)), SAMPLE, sources, targets),
            {name: _quotes(rank, EXTREMES, sources, targets) for name, rank in ranks.items()},
        )

    def __iadd__(self, other: Statistics) -> Statistics:
        self.source += other.source
        self.target += other.target
        self.ratio += other.ratio
        self.sample = sorted(self.sample + other.sample)[:SAMPLE]
        for name, quotes in other.extremes.items():
            self.extremes[name] = sorted(self.extremes[name] + quotes)[:EXTREMES]
        return self

    @property
    def pairs(self) -> int:
        return int(self.ratio.counts.sum())

    def as_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        return {
            "source": self.source.as_dict(),
            "target": self.target.as_dict(),
            "ratio": self.ratio.as_dict(),
            "sample": self.sample,
            "extremes": self.extremes,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Statistics:
        return cls(
            Side.from_dict(values["source"]),
            Side.from_dict(values["target"]),
            Histogram.from_dict(values["ratio"], RATIOS),
            [tuple(quote) for quote in values["sample"]],
            {name: [tuple(quote) for quote in quotes] for name, quotes in values["extremes"].items()},
        )


@dataclass
class TokenCounts:
    """What became of one side's text in the vocabulary; ``+=`` merges."""

    lengths: Histogram
    """Pieces of each sentence, without bos and eos."""

    pieces: np.ndarray
    """How often each piece of the vocabulary occurs."""

    @classmethod
    def of(cls, ids: pa.ChunkedArray, vocab_size: int) -> TokenCounts:
        """Of a column of lists of ids."""
        counts = cls(Histogram.of(np.zeros(0), LENGTHS), np.zeros(vocab_size, dtype=np.int64))
        for chunk in ids.chunks:
            counts.lengths += Histogram.of(np.diff(chunk.offsets), LENGTHS)
            counts.pieces += np.bincount(chunk.flatten(), minlength=vocab_size)
        return counts

    def __iadd__(self, other: TokenCounts) -> TokenCounts:
        self.lengths += other.lengths
        self.pieces = self.pieces + other.pieces
        return self

    def as_dict(self) -> dict[str, Any]:
        """For JSON; ``from_dict`` reads it."""
        return {"lengths": self.lengths.as_dict(), "pieces": self.pieces.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TokenCounts:
        return cls(Histogram.from_dict(values["lengths"], LENGTHS), np.array(values["pieces"], dtype=np.int64))


def _lengths(texts: list[str]) -> np.ndarray:
    return np.fromiter(map(len, texts), float, len(texts))


def _alphabet(texts: list[str]) -> Counter[str]:
    counts = np.zeros(0, dtype=np.int64)
    for begin in range(0, len(texts), 1000):  # four bytes a character, then eight: not of all the text at once
        characters = "".join(texts[begin : begin + 1000]).encode("utf-32-le", "surrogatepass")
        some = np.bincount(np.frombuffer(characters, dtype=np.uint32), minlength=len(counts))
        some[: len(counts)] += counts
        counts = some
    return Counter({chr(code): counts[code].item() for code in np.flatnonzero(counts) if not chr(code).isspace()})


def _quotes(ranks: np.ndarray, number: int, sources: list[str], targets: list[str]) -> list[Quote]:
    """The pairs with the lowest ranks; among equals the texts decide, so that their order does not."""
    most = np.partition(ranks, number - 1)[number - 1] if len(ranks) > number else np.inf
    rows = np.flatnonzero(ranks <= most)
    cut = [
        (rank, sources[row][:LONGEST_QUOTE], targets[row][:LONGEST_QUOTE])
        for row, rank in zip(rows.tolist(), ranks[rows].round(3).tolist(), strict=True)
    ]
    return sorted(cut)[:number]
