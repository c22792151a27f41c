"""Running text: paragraphs are divided into sentences, and put together again in the layout they had.

What white space stands between two sentences, at the ends of a line, and between lines and columns of one text stays
as it is, and so do bullets, numbers of items, and sentences without a letter. Only where one language has blanks
between sentences and the other has none, the plain blank is put in or left out.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.config import SearchConfig, require
from pipeline.inference.segmentation import LETTER, carried_over, sentences
from pipeline.inference.translation import Sentence, Translation, distinct, joined, placed, ranked
from pipeline.inference.translator import Translator

LINE = re.compile(r"[^\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]+")
"""No sentence goes on beyond the end of a line, or of a column."""
MARKERS = re.compile(r"\s*(?:(?:[-*+>•‣◦▪·–—]|#{1,6}|\(?\d{1,3}[.)]|\(?[a-z]\))\s+)*")
"""Indentation, and what begins an item of a list, a heading or a quotation."""


class Stretch(NamedTuple):
    """Of a paragraph: a sentence, or what stands between two."""

    text: str

    is_sentence: bool = False
    """It has a letter, and is to be translated."""


def stretches(text: str, language: str) -> Iterator[Stretch]:
    """What a paragraph consists of, one after the other."""
    end = 0
    for line in LINE.finditer(text):
        start = line.start() + MARKERS.match(line[0]).end()
        for sentence in sentences(text[start : line.end()], language):
            place = start + len(sentence) - len(sentence.lstrip())
            start += len(sentence)
            stripped = sentence.strip()
            if LETTER.search(stripped):
                yield Stretch(text[end:place])
                yield Stretch(stripped, is_sentence=True)
                end = place + len(stripped)
    yield Stretch(text[end:])


class ParagraphTranslator(Translator):
    """A translator of paragraphs: whatever number of sentences and lines they have, their layout stays."""

    def __init__(self, translator: Translator):
        super().__init__(translator.engine, translator.tokenizers, translator.configuration, translator.to)
        self.of_sentences = translator

    def hypotheses(
        self,
        paragraphs: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """As of ``Translator``: the best translations of the sentences together, then the second ones, and so on.

        Raises:
            ValueError: also if something is asked of a paragraph that only a sentence can have.
        """
        divided, asked = [], []
        for paragraph in placed(paragraphs):
            require(
                not paragraph.prefix and not paragraph.terms,
                f"{paragraph.place} has a prefix or terms, which a paragraph cannot have: translate without --document",
            )
            divided.append(list(stretches(paragraph.text, self.languages[0])))
            asked += [Sentence(each.text, place=paragraph.place) for each in divided[-1] if each.is_sentence]
        found = iter(self.of_sentences.hypotheses(asked, search, num_hypotheses))
        return [
            self._joined(paragraph, [next(found) for stretch in paragraph if stretch.is_sentence])[:num_hypotheses]
            for paragraph in divided
        ]

    def _joined(self, paragraph: Sequence[Stretch], found: Sequence[Sequence[Translation]]) -> list[Translation]:
        def whole(best: Sequence[Translation]) -> Translation:
            translations = iter(best)
            return joined(
                (each.text, next(translations) if each.is_sentence else self._carried_over(place, paragraph))
                for place, each in enumerate(paragraph)
            )

        return distinct(map(whole, ranked(found)))

    def _carried_over(self, place: int, paragraph: Sequence[Stretch]) -> str:
        """What is between two sentences may be a blank, or none, of the source's language."""
        text = paragraph[place].text
        return carried_over(text, self.languages) if 0 < place < len(paragraph) - 1 else text
