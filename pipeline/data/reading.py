"""Which rows an epoch reads, of corpora that are read more or less often than others.

An epoch reads a corpus of n rows R times in all: each row R // n times, and a part of R % n rows once more, which is
another one in every epoch. Laid out in a given order, the part is taken at even distances, and where it begins moves on
so that no row is read twice as an extra before all others have been.
"""

from collections.abc import Callable, Sequence

import numpy as np


def num_reads(sizes: Sequence[int], weights: Sequence[float], temperature: float = 1.0) -> list[int]:
    """How many rows of each corpus an epoch reads, as ``CorpusConfig.weight`` and ``CorporaConfig.temperature`` have
    it; at least one of each that has any."""
    sizes = np.asarray(sizes, dtype=np.float64)
    shares = sizes ** (1 / temperature)
    reads = shares / shares.sum() * sizes.sum() * np.asarray(weights)
    return [max(1, round(number)) if size else 0 for number, size in zip(reads.tolist(), sizes.tolist(), strict=True)]


class Reading:
    """The rows of each epoch, a pure function of its number."""

    def __init__(self, order: np.ndarray, corpus: np.ndarray, reads: Sequence[int]):
        """
        Args:
            order: all rows, in the order in which neighbours may stand for each other.
            corpus: the number of each row's corpus.
            reads: how many rows of each corpus an epoch reads.
        """
        of_rows = corpus[order]
        self.corpora = [order[of_rows == number] for number in range(len(reads))]
        self.reads = reads

    def __len__(self) -> int:
        return sum(self.reads)

    def rows(self, epoch: int) -> np.ndarray:
        """The rows of an epoch, with repetitions."""
        return self._with_parts(lambda size, part: epoch * part % size)

    def last_rows(self) -> np.ndarray:
        """As ``rows``, but of a part each row is the last, in the given order, that is ever read in its place."""
        return self._with_parts(lambda size, part: size - 1)

    def _with_parts(self, begin: Callable[[int, int], int]) -> np.ndarray:
        rows = []
        for corpus, number in zip(self.corpora, self.reads, strict=True):
            if number:
                times, part = divmod(number, len(corpus))
                rows += [corpus] * times
                if part:
                    rows.append(corpus[(np.arange(part) * len(corpus) + begin(len(corpus), part)) // part])
        return np.concatenate(rows)
