"""Words and phrases that no translation may contain: how a vocabulary spells them, and whether a text has them.

A search works with pieces, so it is given the spellings of a phrase: as it stands and as at the beginning of a
sentence, each in every way that pieces can be joined to it, from the fewest on. What is spelled as a banned word and
more goes with it. A rarer spelling is met by a look at the text.
"""

import heapq
import itertools
import re
from collections.abc import Iterator, Sequence

from pipeline.data.tokenizer import SPECIAL_PIECES, Tokenizer

MOST_SPELLINGS = 1000
"""Of one phrase; those of the fewest pieces, which are by far the likeliest."""


def variants(phrases: Sequence[str]) -> list[str]:
    """The phrases, and how they begin a sentence; each once."""
    return list(dict.fromkeys(each for phrase in phrases for each in (phrase, phrase[:1].upper() + phrase[1:])))


def spellings(phrases: Sequence[str], tokenizer: Tokenizer, spaced: bool) -> list[tuple[int, ...]]:
    """All of them in pieces; those with a character that the vocabulary cannot write have none.

    ``spaced`` says that words have blanks between them. Only then does a phrase that begins with a letter or a digit
    begin with a blank as well.
    """
    pieces = tokenizer.processor.id_to_piece(list(range(tokenizer.vocab_size)))
    ids = {piece: id for id, piece in enumerate(pieces) if piece not in SPECIAL_PIECES}
    found: dict[tuple[int, ...], None] = {}
    for phrase in variants(phrases):
        blank_first = "▁" + phrase.replace(" ", "▁")
        starts = [blank_first] if spaced and phrase[:1].isalnum() else [blank_first, blank_first[1:]]
        for start in starts:
            found.update(dict.fromkeys(itertools.islice(_joined(start, ids), MOST_SPELLINGS)))
    return list(found)


def _joined(text: str, ids: dict[str, int]) -> Iterator[tuple[int, ...]]:
    """Every sequence of pieces that makes this text, those of fewer pieces first."""
    longest = max(map(len, ids))
    following: list[list[tuple[int, tuple[int, ...]]]] = []  # from each place: where a piece may end, and which
    for start in range(len(text)):
        ends = range(start + 1, min(start + longest, len(text)) + 1)
        following.append([(end, (ids[text[start:end]],)) for end in ends if text[start:end] in ids])
        in_bytes = tuple(ids.get(f"<0x{byte:02X}>", -1) for byte in text[start].encode())
        if text[start] not in ids and -1 not in in_bytes:  # how SentencePiece falls back
            following[-1].append((start + 1, in_bytes))
    least = [float("inf")] * len(text) + [0]  # pieces from here to the end
    for start in reversed(range(len(text))):
        least[start] = 1 + min((least[end] for end, _ in following[start]), default=float("inf"))
    heap = [(least[0], 0, ())] if least[0] < float("inf") else []
    while heap:
        _, start, said = heapq.heappop(heap)
        if start == len(text):
            yield said
            continue
        for end, piece in following[start]:
            if least[end] < float("inf"):
                heapq.heappush(heap, (len(said) + 1 + least[end], end, (*said, *piece)))


def pattern(phrases: Sequence[str], spaced: bool) -> re.Pattern:
    """Finds the phrases in a text; as whole words, where words have blanks between them."""
    found = []
    for phrase in variants(phrases):
        before = r"(?<!\w)" if spaced and phrase[:1].isalnum() else ""
        after = r"(?!\w)" if spaced and phrase[-1:].isalnum() else ""
        found.append(f"{before}{re.escape(phrase)}{after}")
    return re.compile("|".join(found))
