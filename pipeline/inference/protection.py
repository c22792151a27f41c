"""Text that a translation repeats unchanged, whatever model translates: addresses, numbers, placeholders, tags.

A sentence is translated in the first of these ways that brings back all its protected spans, each as often as it has
them, and its tags in the same pairs, nested, and no other tags:

1. As it is: models copy much by themselves.
2. With stand-ins, which our own search is made to use (``Sentence.terms``): small numbers, which every model has seen,
   has learned to copy, and spells in a token. Tags are left out, and put around the words that attention says are
   theirs.
3. In pieces: the text between the spans is translated by itself, and the spans stay in their places. This cannot fail,
   since a piece whose translation would spoil a span, or add one, stays in its own language.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import mean
from typing import NamedTuple

from pipeline.config import SearchConfig, require
from pipeline.data.tokenizer import UNK_ID
from pipeline.inference.attention import attended
from pipeline.inference.engine import EnsembleEngine, TorchEngine
from pipeline.inference.tags import Tag, pairs, put_back, taken_out
from pipeline.inference.translator import Sentence, Translation, Translator

# All take time in proportion to the text: a match begins where no longer one could have begun, and what may be repeated
# is followed by something else than itself.
PATTERNS = {
    "tag": r"</?[A-Za-z][^<>]*>",
    "placeholder": r"\{\{[^{}]*\}\}|\$?\{[^{}]*\}"
    r"|%(?:\([^()]*\)|\d{1,2}\$)?[-+#]{0,3}\d{0,4}(?:\.\d{1,4})?[diouxXeEfFgGcrs](?![A-Za-z])",
    "url": r"(?:https?://|ftp://|www\.)[^\s<>\"'。，、；：！？（）「」『』【】]*[\w/#=&%+~-]",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "number": r"(?<!\w)(?<!\d[.,:/'’-])[-+−]?\d+(?:[.,:/'’-]\d+)*(?!\w|[.,:/'’-]\d)",
}
"""The kinds of spans that can be protected; where several begin, the first counts."""

NUMBER = re.compile(PATTERNS["number"])
LETTER = re.compile(r"[^\W\d_]")
NOTHING = Translation("", 0.0, True)

STAND_IN_BEAM = 8
"""Hypotheses at least, where there are stand-ins, and one more than the tokens of all that a sentence may have."""


class Plan(NamedTuple):
    """A sentence to translate in place of another."""

    text: str
    spans: dict[str, str]
    """What each stand-in stands for."""

    tags: list[Tag]
    """What was left out."""


class Piece(NamedTuple):
    """Text between protected spans: ``before`` and ``after`` stay as they are, ``words`` are translated."""

    before: str
    words: str
    after: str

    @classmethod
    def of(cls, text: str) -> "Piece":
        """Marks at the beginning belong to what went before; a text without a letter stays as it is."""
        if not LETTER.search(text):
            return cls(text, "", "")
        start = next(place for place, character in enumerate(text) if character.isalnum())
        end = len(text.rstrip())
        return cls(text[:start], text[start:end], text[end:])

    @property
    def whole(self) -> str:
        return "".join(self)

    def ended_alike(self, translation: str) -> str:
        """Without a full stop, which models put after everything, where the words have none."""
        return translation.rstrip(".。 ") if self.words[-1:].isalnum() else translation


class ProtectingTranslator(Translator):
    """A translator of sentences with spans of certain kinds that its translations repeat."""

    def __init__(self, translator: Translator, kinds: Sequence[str]):
        """:raises ValueError: a kind is not in ``PATTERNS``."""
        for kind in kinds:
            require(kind in PATTERNS, f"protect={kind} is unknown: choose among {', '.join(PATTERNS)}")
        require(bool(kinds), f"protect= names nothing: choose among {', '.join(PATTERNS)}")
        super().__init__(translator.engine, translator.tokenizers, translator.configuration, translator.to)
        self.pattern = re.compile("|".join(pattern for kind, pattern in PATTERNS.items() if kind in kinds))
        self.stand_ins = self._numbers_by_tokens()
        self.takes_terms = isinstance(self.engine, TorchEngine | EnsembleEngine)

    def hypotheses(
        self,
        sentences: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
        numbers: Iterable[int] | None = None,
    ) -> list[list[Translation]]:
        """As of ``Translator``; where a sentence is not translated as it is, there is one translation of it."""
        search = search or self.search
        sentences = [Sentence(each) if isinstance(each, str) else each for each in sentences]
        numbers = list(itertools.islice(numbers or itertools.count(1), len(sentences)))
        # Where all words are protected there is nothing to translate, and a model would find words all the same.
        asked = [Sentence("") if self._all_protected(each.text) else each for each in sentences]
        found = super().hypotheses(asked, search, num_hypotheses, numbers)
        for row, sentence in enumerate(sentences):
            if asked[row] is not sentence:
                found[row] = [NOTHING._replace(text=sentence.text)]
        ways = (self._with_stand_ins, self._in_pieces) if self.takes_terms else (self._in_pieces,)
        for way in ways:
            for row, sentence in enumerate(sentences):
                found[row] = [each for each in found[row] if self.keeps(sentence.text, each.text)]
            if left := [row for row, translations in enumerate(found) if not translations]:
                again = way([sentences[row] for row in left], search, [numbers[row] for row in left])
                for row, translation in zip(left, again, strict=True):
                    found[row] = [translation] if translation else []
        return found

    def keeps(self, source: str, target: str) -> bool:
        """Whether the target has the protected spans of the source as often, its tags in the same pairs, and no others.

        Other numbers and the like it may have: what is a word in one language is a figure in another.
        """
        wanted, there = (Counter(_pairs(self.pattern.findall(text))) for text in (source, target))
        return all(there[pair] == wanted[pair] for pair in wanted.keys() | filter(_is_tag_pair, there))

    def _all_protected(self, text: str) -> bool:
        rest, spans = self.pattern.subn("", text)
        return spans > 0 and not LETTER.search(rest)

    def _with_stand_ins(
        self, sentences: Sequence[Sentence], search: SearchConfig, numbers: Sequence[int]
    ) -> list[Translation | None]:
        search = dataclasses.replace(
            search,
            method="beam",
            beam_size=max(search.beam_size, STAND_IN_BEAM),
            diverse_groups=1,
            minimum_bayes_risk="none",
        )
        plans = [self._plan(sentence.text) for sentence in sentences]
        asked = [
            Sentence(plan.text, sentence.prefix, (*sentence.terms, *plan.spans)) if plan else Sentence("")
            for sentence, plan in zip(sentences, plans, strict=True)
        ]
        found = super().hypotheses(asked, search, 1, numbers)
        return [self._put_back(best, plan) if plan else None for plan, (best, *_) in zip(plans, found, strict=True)]

    def _plan(self, text: str) -> Plan | None:
        """None where spans touch letters, or are too many."""
        spans, between = self.pattern.findall(text), self.pattern.split(text)
        taken = set(NUMBER.findall(" ".join(between)))
        free = (number for number in self.stand_ins if number not in taken)
        stands_for, tags, parts = {}, [], [between[0]]
        for span, following in zip(spans, between[1:], strict=True):
            if _is_tag(span):
                tags.append(span)
                parts.append(following)
                continue
            stand_in = next(free, "")
            if not stand_in or parts[-1][-1:].isalnum() or following[:1].isalnum():
                return None
            stands_for[stand_in] = span
            parts[-1] += stand_in + following
        without_tags = taken_out(parts, tags)
        if not without_tags or sum(self.stand_ins[each] for each in stands_for) >= STAND_IN_BEAM:
            return None
        return Plan(without_tags[0], stands_for, without_tags[1])

    def _put_back(self, found: Translation, plan: Plan) -> Translation | None:
        text = found.text
        if plan.tags:
            if not isinstance(self.engine, TorchEngine):  # there is no one model whose attention it would be
                return None
            try:
                text = put_back(text, plan.tags, attended(self, plan.text, text).alignment())
            except ValueError:  # nobody sees where these words came from: too many of them, or none, or no attention
                return None
        if text is None:
            return None
        return found._replace(text=NUMBER.sub(lambda number: plan.spans.get(number[0], number[0]), text))

    def _in_pieces(
        self, sentences: Sequence[Sentence], search: SearchConfig, numbers: Sequence[int]
    ) -> list[Translation]:
        divided = [[Piece.of(part) for part in self.pattern.split(sentence.text)] for sentence in sentences]
        asked = [
            (piece.words, number)
            for pieces, number in zip(divided, numbers, strict=True)
            for piece in pieces
            if piece.words
        ]
        found = iter(super().hypotheses([words for words, _ in asked], search, 1, [number for _, number in asked]))
        return [
            self._joined(sentence.text, [(piece, next(found)[0] if piece.words else NOTHING) for piece in pieces])
            for sentence, pieces in zip(sentences, divided, strict=True)
        ]

    def _joined(self, source: str, pieces: Sequence[tuple[Piece, Translation]]) -> Translation:
        spans = self.pattern.findall(source)
        text = ""
        for (piece, translation), (left, right) in zip(pieces, itertools.pairwise(["", *spans, ""]), strict=True):
            candidate = piece.before + piece.ended_alike(translation.text) + piece.after
            its = self.pattern.findall(candidate)
            sound = self.pattern.findall(left + candidate + right) == [
                *filter(None, [left]),
                *its,
                *filter(None, [right]),
            ]
            spoils = not sound or any(_is_tag(span) or span in spans for span in its)
            text += left + (piece.whole if spoils else candidate)
        translations = [translation for piece, translation in pieces if piece.words]
        return Translation(
            text if self.keeps(source, text) else source,
            mean(each.score for each in translations) if translations else 0.0,
            all(each.finished for each in translations),
        )

    def _numbers_by_tokens(self) -> dict[str, int]:
        """Numbers from 3 to 99 that the model can spell, and by how many tokens; those of the fewest come first."""
        numbers = [str(number) for number in range(3, 100)]
        spelt = [tokenizer.encode(numbers) for tokenizer in self.tokenizers]
        tokens = {
            number: len(target)
            for number, source, target in zip(numbers, *spelt, strict=True)
            if UNK_ID not in (*source, *target)
        }
        return dict(sorted(tokens.items(), key=lambda item: item[1]))


def _is_tag(span: str) -> bool:
    return span.startswith("<")


def _is_tag_pair(pair: tuple[str, str]) -> bool:
    return _is_tag(pair[0])


def _pairs(spans: Sequence[str]) -> list[tuple[str, str]]:
    """Tags that belong together, and all other spans by themselves."""
    tags = [span for span in spans if _is_tag(span)]
    closed = pairs(tags)
    closings = set(closed.values())
    return [
        *((span, "") for span in spans if not _is_tag(span)),
        *((tag, tags[closed[i]] if i in closed else "") for i, tag in enumerate(tags) if i not in closings),
    ]
