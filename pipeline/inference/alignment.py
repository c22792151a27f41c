"""Word alignment read from attention: which source word a target word was written from (Garg et al., 2019)."""

from itertools import accumulate, dropwhile

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, tensor

from pipeline.data.cleaning import ENDS, normalise
from pipeline.data.tokenizer import EOS_ID, SPECIAL_PIECES

WORD_START = "▁"
"""What SentencePiece writes for the blank before a word."""


def alignment(
    weights: Float[Tensor, "target source"], source_pieces: list[str], target_pieces: list[str]
) -> list[tuple[int, int]]:
    """Pairs of source word and target word, in the order of the target; both pieces end in eos.

    A target word is linked to the source word that its pieces attend to most in all, or to none where that is eos.

    >>> alignment(tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]), ["▁a", "b", "</s>"], ["▁x", "</s>"])
    [(0, 0)]
    """
    # Sums over the source's pieces. Over the target's a sum has its largest entry where the mean has it.
    source, target = (F.one_hot(tensor(words(pieces))).to(weights) for pieces in (source_pieces, target_pieces))
    *best, _ = (target.T @ weights @ source).argmax(-1).tolist()
    return [(i, j) for j, i in enumerate(best) if i < source.size(1) - 1]


def words(pieces: list[str]) -> list[int]:
    """The number of the word of each piece, from 0; eos is a word of its own."""
    begins = [piece.startswith(WORD_START) or piece == SPECIAL_PIECES[EOS_ID] for piece in pieces]
    return [number - begins[0] for number in accumulate(begins)]


def raw_words(text: str, unicode_form: str) -> list[int]:
    """For each word of the normalised text, as its pieces spell it, the number of the word of ``text`` it came from.

    Both are divided at blanks. Words of nothing but control characters are gone after normalisation, and other blanks
    than U+0020, or a written ``▁``, divide as well.
    """
    kept = [
        (number, word)
        for number, raw in enumerate(text.split())
        for word in normalise(f". {raw} .", unicode_form).split()[1:-1]
    ]
    kept = dropwhile(lambda pair: not pair[1].strip(ENDS), kept)  # as at the ends of a sentence
    return [number for number, word in kept for _ in range(1 + word.count(WORD_START))]
