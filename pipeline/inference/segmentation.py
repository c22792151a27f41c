"""Text divided into what a model can read: sentences, and parts of a text too long for it; and put together again.

Where a sentence ends is known to ``sentencex``, for the languages of Wikipedia. Whatever is divided here, its parts one
after the other are the text.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import accumulate, pairwise

import sentencex

from pipeline.data.languages import has_blanks

Count = Callable[[list[str]], list[int]]
"""The number of tokens of each text."""

Level = Callable[[str], list[str]]
"""Divides a text into units."""

LETTER = re.compile(r"[^\W\d_]")
"""What has none is nothing to translate."""
CLAUSE_END = re.compile(r"""[,;:–—]['"”’»)\]]*\s+|[、，；：]['"”’」』）]*\s*""")
WORD = re.compile(r"\s*\S+\s*|\s+")
JOINERS = "\u200d\ufe0e\ufe0f"
"""Emoji are made with these; Unicode counts only some of them among the marks."""


def sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, each with the white space after it."""
    return sentencex.segment(language, text)


def blank(language: str) -> str:
    """What stands between two sentences."""
    return " " if has_blanks(language) else ""


def carried_over(space: str, languages: tuple[str, str]) -> str:
    """What stands between two translations where ``space`` stood between their sources: the same, but for the blank,
    or its absence, that is usual in the one language and not in the other."""
    usual, there = map(blank, languages)
    return there if space == usual else space


def split(text: str, count: Count, limit: int, language: str, undivided: re.Pattern | None = None) -> list[str]:
    """Divide a text of more than ``limit`` tokens into its sentences, which is what models know best.

    A sentence that is too long is divided, into as few parts as there can be and of like length, between clauses; a
    clause that is, between words; and a word that is, anywhere, if possible before no mark that belongs to the letter
    before it. What matches ``undivided`` is not cut; only such a match may be longer.
    """
    levels: tuple[Level, ...] = (lambda part: sentences(part, language), _clauses, WORD.findall, _characters, list)
    if undivided:
        levels = tuple(partial(_whole, level, undivided) for level in levels)
    if count([text])[0] <= limit:
        return [text]
    between, *within = levels
    return [part for sentence in between(text) for part in _split(sentence, count, limit, tuple(within))]


def _split(text: str, count: Count, limit: int, levels: tuple[Level, ...]) -> list[str]:
    (total,) = count([text])
    if total <= limit or len(text) < 2 or not levels:
        return [text]
    units = levels[0](text)
    if len(units) == 1:
        return _split(text, count, limit, levels[1:])
    # Alone, a character would count as a word.
    sizes = count(units) if len(levels) > 2 else [total * len(unit) / len(text) for unit in units]
    ends = _balanced(sizes, limit)
    if len(ends) == 1:  # together they are more than each by itself
        ends = [len(units) // 2, len(units)]
    parts = ["".join(units[start:end]) for start, end in pairwise([0, *ends])]
    return [each for part in parts for each in _split(part, count, limit, levels)]


def _whole(divide: Level, undivided: re.Pattern, text: str) -> list[str]:
    """The units of the text, put together where a match would be cut."""
    within = {place for match in undivided.finditer(text) for place in range(match.start() + 1, match.end())}
    return _cut(text, (end for end in accumulate(map(len, divide(text))) if end not in within))


def _balanced(sizes: list[float], limit: int) -> list[int]:
    """Where the parts end, if neighbours are put together up to ``limit``: of the fewest parts, the most even ones.
    What is too large by itself is a part."""
    fewest = len(_packed(sizes, limit))
    return _packed(sizes, bisect_left(range(limit), True, key=lambda size: len(_packed(sizes, size)) == fewest))


def _packed(sizes: list[float], limit: int) -> list[int]:
    ends, held = [], 0.0
    for i, size in enumerate(sizes):
        if i and held + size > limit:
            ends.append(i)
            held = 0.0
        held += size
    return [*ends, len(sizes)]


def _clauses(text: str) -> list[str]:
    return _cut(text, (match.end() for match in CLAUSE_END.finditer(text)))


def _characters(text: str) -> list[str]:
    """Letters with the marks that belong to them."""
    joined = [char in JOINERS or unicodedata.category(char).startswith("M") for char in text]
    return _cut(text, (i for i in range(1, len(text)) if not joined[i] and text[i - 1] != "\u200d"))


def _cut(text: str, ends: Iterable[int]) -> list[str]:
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)]) if start < end]
