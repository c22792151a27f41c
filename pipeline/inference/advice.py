"""What nobody sees in a translation and is better told, once of each: that the length limit has cut it, and that of
several sentences some seem to be lost."""

import warnings
from collections.abc import Sequence

from pipeline.inference.passages import Passage
from pipeline.inference.segmentation import sentences
from pipeline.inference.translation import Translation

LONG = 50
"""Tokens of a line of two sentences that is doubted to have been translated as a whole."""


class Advice:
    def __init__(self, languages: tuple[str, str]):
        """
        Args:
            languages: of the sources and of their translations.
        """
        self.languages = languages
        self.said: set[str] = set()

    def give(self, place: str, passages: Sequence[Passage], best: Translation) -> None:
        """Look at the translation of the text that stands there and was divided into these passages."""
        if not best.finished and best.ids != passages[0].source.prefix:
            self._say_once(
                "limit",
                f"the length limit has cut the translation of {place}, and perhaps others: --scores tells which; "
                "search.max_length_ratio and search.max_length_extra raise it",
            )
        if len(passages) == 1 and self._seems_to_lack_sentences(passages[0], best):
            self._say_once(
                "lost",
                f"{place} is several, and the {len(passages[0].source.ids)} tokens they have became {len(best.ids)}: "
                "models that learned from single sentences lose what goes beyond; --document translates sentence by "
                "sentence",
            )

    def _seems_to_lack_sentences(self, passage: Passage, translation: Translation) -> bool:
        """Of three sentences or more, where fewer came of them and a quarter less of tokens, which no right translation
        was seen to have; of two in a long line, where half of the tokens are missing."""
        read, written = len(passage.source.ids), len(translation.ids)
        if 4 * written >= 3 * read or "lost" in self.said:
            return False
        count = len(sentences(passage.text, self.languages[0]))
        if count > 2:
            return len(sentences(translation.text, self.languages[1])) < count
        return count == 2 and read >= LONG and 2 * written < read

    def _say_once(self, what: str, message: str) -> None:
        if what not in self.said:
            self.said.add(what)
            warnings.warn(message, stacklevel=4)
