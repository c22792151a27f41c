"""Text that a translation repeats unchanged, whatever model translates: addresses, numbers, placeholders, tags.

A sentence is translated in the first of these ways that brings back all its protected spans, each as often as it has
them, and its tags in the same pairs, nested, and no other tags:

1. As it is: models copy much by themselves.
2. With stand-ins: small numbers, which every model has seen, has learned to copy, and spells in a token; our own beam
   search is made to use them (``Source.terms``), samples are taken where they do. Tags are left out, and put around the
   words that attention says are theirs.
3. In pieces: the text between the spans is translated by itself, and the spans stay in their places. This cannot fail,
   since a piece whose translation would spoil a span, or add one, stays in its own language.

All ways search as they are told to, for as many translations as are asked for; of those that a way finds, the ones that
keep the spans are returned, and only where it finds none the next one is gone.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.config import SearchConfig, require
from pipeline.data.cleaning import normalise
from pipeline.data.tokenizer import UNK_ID
from pipeline.inference.attention import attended
from pipeline.inference.engine import EnsembleEngine, Source, TorchEngine
from pipeline.inference.passages import Passage
from pipeline.inference.segmentation import LETTER
from pipeline.inference.tags import Tag, pairs, put_back, taken_out
from pipeline.inference.translation import Sentence, Translation, distinct, joined, ranked
from pipeline.inference.translator import Translator

URL = r"[^\s<>\"'()。，、；：！？（）「」『』【】]"
"""What an address has, parentheses apart, which come in pairs."""

# All take time in proportion to the text: a match begins where no longer one could have begun, what may be repeated is
# followed by something else than itself, and none looks beyond the place where the next of its kind would begin.
PATTERNS = {
    "tag": r"<!--(?:[^<-]|<(?!!--)|-(?!->))*-->"
    r"""|</?(?:[A-Za-z](?:[^<>=]|=\s*(?:"[^"<]*"|'[^'<]*'|(?![\s"'])))*|\d{1,4}\s?/?)>"""
    r"|&(?:[A-Za-z][A-Za-z\d]{1,31}|#\d{1,7}|#[xX][A-Fa-f\d]{1,6});",
    "placeholder": r"%%|\{\{[^{}]*\}\}|[$%]?\{[^{}]*\}|\$[A-Za-z_][A-Za-z_\d]*"
    r"|%(?!'s)(?:\([^()]*\)|\d{1,2}\$)?[-+#']{0,4}(?:\d{0,4}|\*)(?:\.(?:\d{1,4}|\*))?"
    r"(?:(?:hh?|ll?|[Ljtz])?[diouxXeEfFgGcrspn](?![A-Za-z])|@)|%L?\d{1,2}(?!\d)",
    "url": rf"(?i:https?://|ftp://|www\.){URL}*(?:\({URL}*\){URL}*)*(?<=[\w/#=&%+~)-])(?<!://)",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    "number": r"(?<!\w)(?<!\d[.,:/'’-])[-+−]?\d+(?:[.,:/'’-]\d+)*(?!\w|[.,:/'’-]\d)",
}
"""The kinds of spans that can be protected; where several begin, the first counts."""

NUMBER = re.compile(PATTERNS["number"])

STAND_IN_BEAM = 8
"""Hypotheses at least, where there are stand-ins, and one more than the tokens of all that a sentence may have."""


LOOKED_AT = 4
"""Translations with stand-ins, for each that is wanted: one may have them twice, or as a word."""


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
        self.undivided = self.pattern
        self.stand_ins = self._numbers_in_tokens()
        self.has_stand_ins = isinstance(self.engine, TorchEngine | EnsembleEngine)

    def hypotheses(
        self,
        sentences: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """As of ``Translator``."""
        found = super().hypotheses(sentences, search, num_hypotheses)
        texts = [each if isinstance(each, str) else each.text for each in sentences]
        return [
            [each for each in translations if self.keeps(text, each.text)] or [joined([(text, text)])]
            for text, translations in zip(texts, found, strict=True)
        ]

    def of_passages(
        self, passages: Sequence[Passage], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Translation]]:
        # Where all words are protected there is nothing to translate, and a model would find words all the same.
        found = [[joined([(text, text)])] if self._all_protected(text) else [] for text, _ in passages]
        for way in (super().of_passages, self._with_stand_ins, self._in_pieces):
            if left := [row for row, translations in enumerate(found) if not translations]:
                again = way([passages[row] for row in left], search, num_hypotheses)
                for row, translations in zip(left, again, strict=True):
                    kept = [each for each in translations if self.keeps(passages[row].text, each.text)]
                    found[row] = kept[:num_hypotheses]
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
        self, passages: Sequence[Passage], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Translation]]:
        forced = search.method == "beam" and search.diverse_groups == 1
        if forced:
            search = dataclasses.replace(search, beam_size=max(search.beam_size, STAND_IN_BEAM))
        found: list[list[Translation]] = [[] for _ in passages]
        asked = {}
        plans = [self._plan(passage.text) if self.has_stand_ins else None for passage in passages]
        encoded = self.source_ids([plan.text if plan else "" for plan in plans])
        for row, (passage, plan, ids) in enumerate(zip(passages, plans, encoded, strict=True)):
            if plan and 0 < len(ids) <= search.max_source_tokens:
                terms = (*passage.source.terms, *(self.stand_ins[each] for each in plan.spans if forced))
                asked[row] = Passage(plan.text, Source(tuple(ids), passage.source.prefix, terms))
        tries = LOOKED_AT * num_hypotheses
        if search.method == "beam":
            tries = min(tries, search.beam_size)
        again = super().of_passages(list(asked.values()), search, tries)
        for row, translations in zip(asked, again, strict=True):
            found[row] = [text for each in translations if (text := self._put_back(each, plans[row]))]
        return found

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
        if not without_tags or sum(len(self.stand_ins[each]) for each in stands_for) >= STAND_IN_BEAM:
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
        text = NUMBER.sub(lambda number: plan.spans.get(number[0], number[0]), text)
        return self._with_text(found, text)

    def _with_text(self, found: Translation, text: str) -> Translation:
        """Of a text that was changed, the pieces are those it would be cut into."""
        if text == found.text:
            return found._replace(parts=())
        [ids] = self.tokenizers.target.encode([normalise(text, self.unicode_form)])
        return found._replace(text=text, ids=tuple(ids), parts=())

    def _in_pieces(
        self, passages: Sequence[Passage], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Translation]]:
        divided = [[Piece.of(part) for part in self.pattern.split(passage.text)] for passage in passages]
        words = [piece.words for pieces in divided for piece in pieces if piece.words]
        asked = [Passage(text, Source(tuple(ids))) for text, ids in zip(words, self.source_ids(words), strict=True)]
        found = iter(super().of_passages(asked, search, num_hypotheses))
        return [
            distinct(
                self._joined(passage.text, pieces, best)
                for best in ranked([next(found) for piece in pieces if piece.words])
            )[:num_hypotheses]
            for passage, pieces in zip(passages, divided, strict=True)
        ]

    def _joined(self, source: str, pieces: Sequence[Piece], translations: Sequence[Translation]) -> Translation:
        """The spans, and between them the translations of those pieces that have words."""
        spans, its = self.pattern.findall(source), iter(translations)
        stretches: list[tuple[str, Translation | str]] = []
        for piece, (left, right) in zip(pieces, itertools.pairwise(["", *spans, ""]), strict=True):
            made = next(its) if piece.words else None
            words = piece.ended_alike(made.text) if made else ""
            kept = made is None or self._spoils(left, piece.before + words + piece.after, right, spans)
            stretches += [
                (left, left),
                (piece.before, piece.before),
                (piece.words, piece.words if kept else self._with_text(made, words)),
                (piece.after, piece.after),
            ]
        found = joined(stretches)
        return found if self.keeps(source, found.text) else joined([(source, source)])

    def _spoils(self, left: str, text: str, right: str, spans: Sequence[str]) -> bool:
        """Whether the text between two spans changes them, or has a tag or one of the spans itself."""
        its = self.pattern.findall(text)
        sound = self.pattern.findall(left + text + right) == [*filter(None, [left]), *its, *filter(None, [right])]
        return not sound or any(_is_tag(span) or span in spans for span in its)

    def _numbers_in_tokens(self) -> dict[str, tuple[int, ...]]:
        """Numbers from 3 to 99 that the model can spell, and how; those of the fewest tokens come first."""
        numbers = [str(number) for number in range(3, 100)]
        spelt = [tokenizer.encode(numbers) for tokenizer in self.tokenizers]
        tokens = {
            number: tuple(target)
            for number, source, target in zip(numbers, *spelt, strict=True)
            if UNK_ID not in (*source, *target)
        }
        return dict(sorted(tokens.items(), key=lambda item: len(item[1])))


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
