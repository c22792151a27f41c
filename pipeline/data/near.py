"""Which texts are alike."""

import unicodedata

import regex

from pipeline.data.cleaning import normalise

APART = regex.compile(r"[\p{P}\p{Z}\p{C}]+")
"""Punctuation, blanks, and invisible characters."""


def fold(text: str) -> str:
    """A normalised text without case, spacing, punctuation and Unicode's other forms of letters; as it is where
    nothing else is left.
    """
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", normalise(text, "NFKC").casefold())
    return APART.sub("", folded) or folded
