"""Stretches of text that are translated as a whole: a text too long for that becomes several, and their translations
become its own again."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pipeline.data.cleaning import normalise
from pipeline.inference.engine import Source
from pipeline.inference.segmentation import LETTER, carried_over, split
from pipeline.inference.translation import Part, Translation, joined, ranked

Encode = Callable[[Sequence[str]], list[list[int]]]
"""The ids of each text."""


class Passage(NamedTuple):
    """A stretch of text that is translated as a whole."""

    text: str

    source: Source


def divided(
    text: str,
    prefix: tuple[int, ...],
    encode: Encode,
    limit: int,
    language: str,
    undivided: re.Pattern | None = None,
) -> list[Passage]:
    """The passages of a text that has more tokens than ``limit``, divided as by ``segmentation.split``. The first has
    the prefix; those without a letter are left out, unless all are."""

    def count(texts: list[str]) -> list[int]:
        return [len(ids) for ids in encode(texts)]

    texts = [part.strip() for part in split(text, count, limit, language, undivided)]
    parts = [(part, tuple(ids)) for part, ids in zip(texts, encode(texts), strict=True) if ids]
    parts = [part for part in parts if LETTER.search(part[0])] or parts
    return [Passage(part, Source(ids, () if i else prefix)) for i, (part, ids) in enumerate(parts)]


def reunited(
    text: str,
    passages: Sequence[Passage],
    found: Sequence[Sequence[Translation]],
    languages: tuple[str, str],
    unicode_form: str,
) -> list[Translation]:
    """The translations of a text from those of its passages; that of a blank text, which has none, is empty."""
    if not passages:
        return [Translation("", 0.0, True)]
    if passages[0].text == text:
        return [each._replace(parts=each.parts or (Part(text, each.text),)) for each in found[0]]

    def kept(space: str, is_between: bool) -> str:
        """What stands in the translation where this stands around passages: marks and figures, and a blank between
        two."""
        if normalise(space, unicode_form):
            return re.sub(r"\s+", " ", space)
        return carried_over(" " if space else "", languages) if is_between else ""

    def whole(best: Sequence[Translation]) -> Translation:
        stretches, end = [], 0
        for passage, translation in zip(passages, best, strict=True):
            start = text.index(passage.text, end)
            between = text[end:start]
            stretches += [(between, kept(between, end > 0)), (passage.text, translation)]
            end = start + len(passage.text)
        return joined([*stretches, (text[end:], kept(text[end:], False))])

    return list(map(whole, ranked(found)))
