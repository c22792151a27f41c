"""What is asked of a translation, what it is, and how translations of a text's parts make that of the text."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import mean
from typing import NamedTuple

from pipeline.data.lines import read_lines, shown


class Sentence(NamedTuple):
    """A text to translate, and what is asked of its translation."""

    text: str

    prefix: str = ""
    """What it must begin with; one that takes the whole length that a translation may have is all of it."""

    terms: tuple[str, ...] = ()
    """What it must contain, ending where a word ends."""

    place: str = ""
    """Where the text stands, as warnings name it."""


def placed(sentences: Iterable[str | Sentence]) -> Iterator[Sentence]:
    """Sentences that all have a place, if only their number, from 1."""
    for number, each in enumerate(sentences, 1):
        sentence = Sentence(each) if isinstance(each, str) else each
        yield sentence if sentence.place else sentence._replace(place=f"sentence {number}")


def sentences_of(path: str) -> list[Sentence]:
    """The lines of a file, or of the standard input (``-``), each with its place there.

    Raises:
        ValueError, OSError: as ``read_lines``.
    """
    return [Sentence(text, place=f"{shown(path)}, line {number}") for number, text in enumerate(read_lines(path), 1)]


class Part(NamedTuple):
    """A stretch of a text, and what stands in its place in the translation."""

    source: str

    target: str

    kept: bool = False
    """It was not translated: it is layout, or protected, or has no words."""


class Translation(NamedTuple):
    text: str
    """Plain text, and one line unless its source had several."""

    score: float
    """Length-normalised log-probability (``models.search``); of a text translated in parts, the parts' mean."""

    finished: bool
    """False if the length limit stopped it."""

    ids: tuple[int, ...] = ()
    """Its pieces, as they were found; of a text translated in parts, one part's after the other's."""

    parts: tuple[Part, ...] = ()
    """Those that were translated by themselves, and what stands between them; their sources one after the other are the
    text, and their targets the translation. None for a blank text."""


def joined(stretches: Iterable[tuple[str, Translation | str]]) -> Translation:
    """The translation of a text, of whose stretches each comes with its own, or with what else takes its place."""
    made: list[Translation] = []
    parts: list[Part] = []
    for source, target in stretches:
        if isinstance(target, Translation):
            made.append(target)
            parts += target.parts or [Part(source, target.text)]
        elif source or target:
            parts.append(Part(source, target, kept=True))
    if made and not "".join(part.target for part in parts).strip():  # nothing was said that blanks could divide
        parts = [part._replace(target="") for part in parts]
    return Translation(
        "".join(part.target for part in parts),
        mean(each.score for each in made) if made else 0.0,
        all(each.finished for each in made),
        tuple(chain.from_iterable(each.ids for each in made)),
        tuple(parts),
    )


def ranked(lists: Sequence[Sequence[Translation]]) -> Iterator[tuple[Translation, ...]]:
    """The best of each list, then the second ones, and so on; of a list that is over, its last one."""
    for rank in range(max(map(len, lists), default=1)):
        yield tuple(each[min(rank, len(each) - 1)] for each in lists)


def distinct(translations: Iterable[Translation]) -> list[Translation]:
    """Each text once, in the place of its first."""
    found: dict[str, Translation] = {}
    for each in translations:
        found.setdefault(each.text, each)
    return list(found.values())
