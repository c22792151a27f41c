"""Inline tags: which belong together, and where they go in a translation: around the words written from those they were
around, by the word alignment of attention (as in Hanneman and Dinu, 2020)."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

NAME = re.compile(r"</?([A-Za-z\d!][^\s/>]*)")
"""Of a tag; a comment has one as well, which nothing closes."""


def pairs(tags: Sequence[str]) -> dict[int, int]:
    """The number of the closing tag of every opening one that has its own: nested, with no half of a pair between."""
    closed, waiting, names = {}, [], Counter()
    for number, tag in enumerate(tags):
        name = NAME.match(tag)[1]
        if not tag.startswith("</"):
            waiting.append((name, number))
            names[name] += 1
        elif names[name]:
            other = ""
            while other != name:
                other, opening = waiting.pop()
                names[other] -= 1
            closed[opening] = number
    return closed


class Tag(NamedTuple):
    """A tag, and where it stands among the words of its sentence."""

    text: str

    begun: int
    """Words that begin before it."""

    after_blank: bool
    before_blank: bool
    """White space, or an end of the sentence, is at its side."""

    @property
    def word(self) -> int:
        """The word that follows it, or in which it stands."""
        return self.begun if self.after_blank or self.before_blank else self.begun - 1


def taken_out(parts: Sequence[str], tags: Sequence[str]) -> tuple[str, list[Tag]] | None:
    """The text of the parts around the tags, and the tags with their places; None if one stands between two letters."""
    text = "".join(parts)
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    found, place = [], 0
    for part, tag in zip(parts, tags, strict=False):
        place += len(part)
        left, right = text[place - 1 : place] if place else "", text[place : place + 1]
        if left.isalnum() and right.isalnum():
            return None
        found.append(Tag(tag, bisect_left(starts, place), not left.strip(), not right.strip()))
    return text, found


def put_back(translation: str, tags: Sequence[Tag], alignment: Iterable[tuple[int, int]]) -> str | None:
    """The translation with the tags; None if no word was written from those between two that belong together.

    ``alignment``: pairs of word and word of the translation, by their numbers between blanks.
    """
    words = translation.split()
    written: dict[int, list[int]] = {}
    for word, its in alignment:
        written.setdefault(word, []).append(its)
    closed = pairs([tag.text for tag in tags])
    opened = {closing: opening for opening, closing in closed.items()}
    before, after = defaultdict(list), defaultdict(list)
    for number, tag in enumerate(tags):
        partner = tags[closed.get(number, opened.get(number, number))]
        first, last = min(tag, partner, key=lambda each: each.begun).word, max(tag.begun, partner.begun)
        if partner is not tag and first < last:
            within = [its for word in range(first, last) for its in written.get(word, [])]
            if not within:
                return None
            place, at_end = (min(within), False) if number in closed else (max(within), True)
        elif not tag.after_blank and tag.before_blank and tag.begun - 1 in written:
            place, at_end = max(written[tag.begun - 1]), True
        else:  # before what follows it; the end is after the last word
            later = range(tag.word, max(written, default=0) + 1)
            follows = next((written[word] for word in later if word in written), [])
            place, at_end = (min(follows), False) if follows else (len(words) - 1, True)
        (after if at_end else before)[place].append(tag)
    return " ".join(_with_tags(word, before[number], after[number]) for number, word in enumerate(words))


def _with_tags(word: str, before: list[Tag], after: list[Tag]) -> str:
    """Punctuation that stood outside of a tag stays outside."""
    if not before and not after:
        return word
    letters = [place for place, character in enumerate(word) if character.isalnum()] or [0, len(word) - 1]
    start = 0 if all(tag.after_blank for tag in before) else letters[0]
    end = len(word) if all(tag.before_blank for tag in after) else letters[-1] + 1
    opening = "".join(tag.text + " " * tag.before_blank for tag in before)
    closing = "".join(" " * tag.after_blank + tag.text for tag in after)
    return word[:start] + opening + word[start:end] + closing + word[end:]
