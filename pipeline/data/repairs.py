"""What can be mended in a text as it was read, before it is normalised: ``REPAIRS``."""

import html
import re
from collections.abc import Callable

TAG = re.compile(r"</?([a-z][\w.:-]*)(?:\s[^<>]*)?/?>|<![^<>]*>|<\?[^<>]*>", re.IGNORECASE)
"""A tag by its name, a comment, or a declaration; ``a < b > c``, ``<3``, ``<joe@example.org>`` are none."""

HIDDEN = re.compile(r"<(?:script|style)\b[^<>]*>[^<]*", re.IGNORECASE)
INLINE = frozenset(
    "a abbr b bdi bdo big cite code del dfn em font i ins kbd mark q s samp small span strike strong".split()
)
INLINE |= frozenset("sub sup tt u var wbr bpt ept ph g x bx ex it ut hi mrk".split())
"""Tags of HTML, TMX and XLIFF that stand inside words; others stand between them."""

ENTITY = re.compile(r"&(?:[a-z][a-z0-9]{1,30}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
"""Only with its semicolon, as ``?a=1&copy=2`` holds none."""


def mojibake(text: str) -> str:
    """Text that was written in one encoding and read in another, put right where ftfy is sure."""
    if text.isascii():
        return text
    from ftfy import fix_encoding  # takes a while to import, which only those wait for who ask for it

    return fix_encoding(text)


def markup(text: str) -> str:
    """Tags are taken out, entities become their characters; so do those that were escaped twice."""
    for _ in range(3):
        if "<" in text:
            text = TAG.sub(_gap, HIDDEN.sub(" ", text))
        if "&" in text:
            text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return text


def _gap(tag: re.Match[str]) -> str:
    return "" if (tag[1] or "").lower() in INLINE else " "


REPAIRS: dict[str, Callable[[str], str]] = {"mojibake": mojibake, "markup": markup}
"""By the setting that asks for it, in order."""
