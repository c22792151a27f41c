"""Running text: paragraphs are divided into sentences, and put together again in the layout they had."""

import itertools
import re
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from pipeline.config import SearchConfig, require
from pipeline.inference.segmentation import blank, sentences
from pipeline.inference.translator import Sentence, Translation, Translator

LETTER = re.compile(r"[^\W\d_]")
MARKERS = re.compile(r"\s*(?:(?:[-*+>•‣◦▪·–—]|#{1,6}|\(?\d{1,3}[.)]|\(?[a-z]\))\s+)*")
"""Indentation, and what begins an item of a list, a heading or a quotation."""


class Paragraph(NamedTuple):
    """A line of text; ``before`` and ``after``, which holds white space, stay as they are."""

    before: str
    sentences: list[str]
    after: str

    @classmethod
    def of(cls, text: str, language: str) -> "Paragraph":
        start = MARKERS.match(text).end()
        end = max(start, len(text.rstrip()))
        return cls(text[:start], [each.strip() for each in sentences(text[start:end], language)], text[end:])


class ParagraphTranslator(Translator):
    """A translator of paragraphs, each a line: whatever number of sentences it has, it is one line again.

    Line ends, indentation, bullets and numbers of items stay, and so does a sentence without a letter.
    """

    def __init__(self, translator: Translator):
        super().__init__(translator.engine, translator.tokenizers, translator.configuration, translator.to)
        self.of_sentences = translator

    def hypotheses(
        self,
        paragraphs: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
        numbers: Iterable[int] | None = None,
    ) -> list[list[Translation]]:
        """As of ``Translator``: the best translations of the sentences together, then the second ones, and so on.

        Raises:
            ValueError: also if something is asked of a paragraph that only a sentence can have.
        """
        numbers = list(itertools.islice(numbers or itertools.count(1), len(paragraphs)))
        divided = []
        for paragraph, number in zip(paragraphs, numbers, strict=True):
            text, prefix, terms = (paragraph, "", ()) if isinstance(paragraph, str) else paragraph
            require(
                not prefix and not terms,
                f"line {number} has a prefix or terms, which belong to a sentence: translate without --document",
            )
            divided.append(Paragraph.of(text, self.languages[0]))
        asked = [
            (sentence, number)
            for paragraph, number in zip(divided, numbers, strict=True)
            for sentence in paragraph.sentences
            if LETTER.search(sentence)
        ]
        translated, their_numbers = zip(*asked, strict=True) if asked else ((), ())
        found = iter(self.of_sentences.hypotheses(translated, search, num_hypotheses, their_numbers))
        return [
            self._joined(paragraph, [next(found) for each in paragraph.sentences if LETTER.search(each)])
            for paragraph in divided
        ]

    def _joined(self, paragraph: Paragraph, found: list[list[Translation]]) -> list[Translation]:
        between = blank(self.languages[1])
        translations = []
        for best in zip(*found, strict=False) if found else [()]:  # the shortest list decides
            texts = iter(best)
            sentences = [next(texts).text if LETTER.search(each) else each for each in paragraph.sentences]
            translations.append(
                Translation(
                    paragraph.before + between.join(filter(None, sentences)) + paragraph.after,
                    mean(each.score for each in best) if best else 0.0,
                    all(each.finished for each in best),
                    tuple(itertools.chain.from_iterable(each.ids for each in best)),
                )
            )
        return translations
