"""What a search must know of the target's pieces, which it knows by their ids; and where words end.

Words end at blanks and marks. In scripts without blanks nobody can tell, and every letter counts as a word's end.
"""

import re
import unicodedata
from typing import NamedTuple

from models.terms import APART, Words
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

WITHOUT_BLANKS = ("BOPOMOFO", "CJK", "HIRAGANA", "KATAKANA", "KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN")
"""Scripts, by how the Unicode names of their letters begin."""


class Vocabulary(NamedTuple):
    forbidden_ids: tuple[int, ...] = (PAD_ID, UNK_ID, BOS_ID)
    """Never generated, and without a share of the probability: they stand for no text."""

    words: Words = APART

    @classmethod
    def of(cls, target: Tokenizer) -> "Vocabulary":
        """That of a tokenizer; tags of languages and what fills a vocabulary up stand for no text either."""
        pieces = target.processor.id_to_piece(list(range(target.vocab_size)))
        controls = {id for id in range(len(pieces)) if target.processor.is_control(id)}
        # A byte may be part of a letter.
        ending, going_on = (
            frozenset(id for id, piece in enumerate(pieces) if id in target.bytes or within_word(piece[end]))
            for end in (-1, 0)
        )
        return cls(tuple(sorted({*cls().forbidden_ids, *controls} - {EOS_ID})), Words(ending, going_on))


ANY = Vocabulary()
"""Of pieces of which nothing is known."""


def within_word(character: str) -> bool:
    """Whether words are made of this character, also as a mark on a letter, and the script puts blanks between them."""
    is_part = character.isalnum() or unicodedata.category(character).startswith("M")
    return is_part and not unicodedata.name(character, "").startswith(WITHOUT_BLANKS)


def occurs(phrase: str, text: str) -> bool:
    """Whether the text has the phrase, beginning where a word begins and ending where one ends."""
    return any(
        not (_cuts_a_word(text, match.start()) or _cuts_a_word(text, match.start() + len(phrase)))
        for match in re.finditer(f"(?={re.escape(phrase)})", text)
    )


def _cuts_a_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and within_word(text[place - 1]) and within_word(text[place])
