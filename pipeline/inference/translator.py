"""Text in, text out: the one door to a trained model.

A translation depends on its sentence and the search's settings, and on nothing else: not on neighbours, batch size or
order. Sentences are sorted by length into batches under a token budget, and equal ones are translated once.
"""

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from models.encoder_decoder import EncoderDecoder
from models.search import Hypothesis
from models.terms import contains
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.cleaning import normalise
from pipeline.data.tokenizer import UNK_ID, Tokenizers
from pipeline.inference.advice import Advice
from pipeline.inference.banned import pattern, spellings
from pipeline.inference.candidates import asked_for, best_first, filled_up, widened
from pipeline.inference.engine import Engine, Source, TorchEngine
from pipeline.inference.loading import load_engine
from pipeline.inference.passages import Passage, divided, reunited
from pipeline.inference.segmentation import blank
from pipeline.inference.translation import Sentence, Translation, distinct, placed
from pipeline.inference.vocabulary import Vocabulary


class Translator:
    """An engine with its tokenizers, and the normalisation and search settings of its configuration."""

    def __init__(self, engine: Engine, tokenizers: Tokenizers, configuration: Configuration, to: str = ""):
        """
        Args:
            to: the language to translate into, of a model that has several.

        Raises:
            ValueError: the model cannot be asked for it.
        """
        directions = [(corpus.source_language, corpus.target_language) for corpus in configuration.corpora.each]
        self.to = _tag_for(to, tokenizers.languages, directions)
        self.engine = engine
        self.tokenizers = tokenizers
        self.configuration = configuration
        self.unicode_form = configuration.cleaning.unicode_form
        self.search = configuration.search
        self.languages = next((each for each in directions if each[1] == self.to), directions[0])
        self.undivided: re.Pattern | None = None
        """What an over-long sentence is not cut in."""
        self.advice: Advice | None = None
        """Who watches the translations for somebody who reads warnings."""

    @classmethod
    def of(cls, model: EncoderDecoder, tokenizers: Tokenizers, configuration: Configuration) -> "Translator":
        """That of a model where and as it is."""
        return cls(TorchEngine(model, vocabulary=Vocabulary.of(tokenizers.target)), tokenizers, configuration)

    @classmethod
    def load(
        cls,
        paths: str | Path | Sequence[str | Path],
        device: str | torch.device | None = None,
        precision: str = "auto",
        engine: str = "dragoman",
        to: str = "",
    ) -> "Translator":
        """The model of a run folder, a model folder or a ``.ckpt``; on a GPU where there is one, unless told where.

        Several models translate as one (``search.ensemble``), with the settings of the first. ``precision`` is as of
        ``TorchEngine``.

        ``engine`` is ours, or ``ctranslate2`` or ``huggingface``, for one folder that ``scripts/export.py`` wrote.

        ``to`` is the language to translate into, of a model that has several.

        Raises:
            ValueError, OSError: as ``pipeline.checkpoint.load_model``, or the models have different tokenizers, or
                cannot be asked for that language.
        """
        paths = [paths] if isinstance(paths, str | Path) else paths
        return cls(*load_engine(paths, device, precision, engine), to)

    def into(self, language: str) -> "Translator":
        """The same model, asked for that language; for none, as it is.

        Raises:
            ValueError: the model cannot be asked for it.
        """
        return Translator(self.engine, self.tokenizers, self.configuration, language) if language else self

    def translate(self, sentences: Sequence[str | Sentence], search: SearchConfig | None = None) -> list[str]:
        """The best translation of each sentence; ``search`` takes the place of the model's own settings.

        A sentence without a visible character gives an empty one. One beyond ``search.max_source_tokens`` is translated
        sentence by sentence, with a warning; its prefix is the first part's, and no part is asked for its terms. A
        prefix or term that the model cannot spell is left out, with a warning.

        Raises:
            ValueError: ``search`` allows no translation, or one too long for the model's positions.
        """
        return [found[0].text for found in self.hypotheses(sentences, search)]

    def translate_into(self, languages: Sequence[str], sentences: Sequence[str], search: SearchConfig) -> list[str]:
        """The best translation of each sentence into its own language; none is named to a model without tags."""
        translations = [""] * len(sentences)
        for language in sorted(set(languages)):
            rows = [row for row, its_own in enumerate(languages) if its_own == language]
            found = self.into(language).translate([sentences[row] for row in rows], search)
            for row, translation in zip(rows, found, strict=True):
                translations[row] = translation
        return translations

    def stream(
        self,
        sentences: Iterable[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
        chunk: int | None = None,
    ) -> Iterator[list[Translation]]:
        """What ``hypotheses`` returns, for any number of sentences: only a chunk of them is held at once."""
        search = search or self.search
        # Half as many sentences as a batch has tokens make about a dozen batches, enough to sort by length.
        chunk = chunk or max(1, search.tokens_per_batch // 2)
        rows = placed(sentences)
        while some := list(itertools.islice(rows, chunk)):
            yield from self.hypotheses(some, search, num_hypotheses)

    def hypotheses(
        self,
        sentences: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
    ) -> list[list[Translation]]:
        """The best translations of each sentence, best first: up to ``num_hypotheses`` that differ, and at least one.

        Raises:
            ValueError: ``search`` allows no translation, or one too long for the model's positions, or has fewer beams
                than hypotheses are wanted, or bans a term.
        """
        search = search or self.search
        self.engine.require(search)
        require(
            num_hypotheses >= 1 and (search.method == "sampling" or num_hypotheses <= search.beam_size),
            f"{num_hypotheses} hypotheses cannot come of search.beam_size={search.beam_size}: raise it",
        )
        asked = list(placed(sentences))
        rows = self._passages(asked, search.max_source_tokens)
        found = iter(self.of_passages([passage for row in rows for passage in row], search, num_hypotheses))
        translations = [
            reunited(sentence.text, row, [next(found) for _ in row], self.languages, self.unicode_form)
            for sentence, row in zip(asked, rows, strict=True)
        ]
        if self.advice:
            for sentence, row, (best, *_) in zip(asked, rows, translations, strict=True):
                self.advice.give(sentence.place, row, best)
        return translations

    def of_passages(
        self, passages: Sequence[Passage], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Translation]]:
        """Up to ``num_hypotheses`` translations of each passage, and at least one."""
        # Longest first: a batch that is too much for the memory is met at once.
        sources = sorted({passage.source for passage in passages}, key=lambda source: (-len(source.ids), source))
        found = dict(zip(sources, self.search_for(sources, search, num_hypotheses), strict=True))
        return [found[passage.source] for passage in passages]

    def search_for(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Translation]]:
        """What the engine finds for each source, as text: each text once, banned ones last and only where there are no
        others. Where a beam finds too few that differ, one that is twice as wide fills the list up behind the first.

        Raises:
            ValueError: a term has what ``search`` bans.
        """
        found = [texts[:num_hypotheses] for texts in self._distinct(sources, search, num_hypotheses)]
        short = [row for row, texts in enumerate(found) if len(texts) < num_hypotheses]
        if short and (wider := widened(search)):
            more = self._distinct([sources[row] for row in short], wider, wider.beam_size)
            for row, texts in zip(short, more, strict=True):
                found[row] = filled_up(found[row], texts)[:num_hypotheses]
        return found

    def _distinct(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Translation]]:
        banned = self.banned(search)
        for term in {term for source in sources for term in source.terms if banned}:
            if any(contains(term, phrase) for phrase in banned):
                [text] = self.tokenizers.target.decode([list(term)])
                raise ValueError(f'the term "{text}" has what search.banned={search.banned} forbids: leave out either')
        count, its_search = asked_for(search, num_hypotheses)
        options = {"banned": banned} if banned else {}
        hypotheses = self.engine.search(sources, its_search, count, **options)
        refused = pattern(self._phrases(search), self._spaced) if search.banned else None
        return [distinct(best_first(texts, search, refused, self.languages[1])) for texts in self._texts(hypotheses)]

    def banned(self, search: SearchConfig) -> list[tuple[int, ...]]:
        """What ``search`` bans, in pieces."""
        return spellings(self._phrases(search), self.tokenizers.target, self._spaced) if search.banned else []

    def _phrases(self, search: SearchConfig) -> list[str]:
        return [normalise(phrase, self.unicode_form) for phrase in search.banned]

    @property
    def _spaced(self) -> bool:
        """Whether the language translated into has blanks between its words."""
        return blank(self.languages[1]) != ""

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text's pieces, after the tag of the language asked for; none of a blank text.

        Raises:
            ValueError: the model has several languages, and none was asked for.
        """
        languages = self.tokenizers.languages
        require(bool(self.to) or not languages, f"this model translates into {', '.join(languages)}: choose with --to")
        encoded = self.tokenizers.encode_source([normalise(text, self.unicode_form) for text in texts], self.to)
        return [ids if len(ids) > bool(self.to) else [] for ids in encoded]

    def _passages(self, sentences: Sequence[Sentence], max_tokens: int) -> list[list[Passage]]:
        """The parts of each sentence: one, several if it is too long, none if it is blank."""
        rows = []
        encoded = self.source_ids([sentence.text for sentence in sentences])
        for sentence, ids in zip(sentences, encoded, strict=True):
            prefix, terms = self._asked(sentence) if ids else ((), ())
            if len(ids) <= max_tokens:
                rows.append([Passage(sentence.text, Source(tuple(ids), prefix, terms))] if ids else [])
                continue
            rows.append(divided(sentence.text, prefix, self.source_ids, max_tokens, self.languages[0], self.undivided))
            warnings.warn(
                f"{sentence.place} has {len(ids)} source tokens, more than search.max_source_tokens={max_tokens}: "
                f"it is translated in {len(rows[-1])} parts{', without its terms' if terms else ''}",
                stacklevel=4,
            )
        return rows

    def _asked(self, sentence: Sentence) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Prefix and terms in pieces."""
        if not (sentence.prefix or sentence.terms):
            return (), ()
        texts = [normalise(text, self.unicode_form) for text in (sentence.prefix, *sentence.terms)]
        encoded = []
        for text, ids in zip(texts, self.tokenizers.target.encode(texts), strict=True):
            if UNK_ID in ids:
                warnings.warn(
                    f'{sentence.place}: the model cannot spell "{text}", which its translation is to have: it is left '
                    "out",
                    stacklevel=5,
                )
            encoded.append(() if UNK_ID in ids else tuple(ids))
        prefix, *terms = encoded
        return prefix, tuple(filter(None, terms))

    def _texts(self, found: list[list[Hypothesis]]) -> list[list[Translation]]:
        ids = [hypothesis.ids for hypotheses in found for hypothesis in hypotheses]
        # A model that spells in bytes may spell the end of a line; its translation is one line all the same.
        texts = iter([" ".join(text.splitlines()) for text in self.tokenizers.target.decode(ids)])
        return [
            [Translation(next(texts), score, finished, tuple(ids)) for ids, score, finished in each] for each in found
        ]


def _tag_for(to: str, tagged: Sequence[str], directions: Sequence[tuple[str, str]]) -> str:
    """The language whose tag asks a model for ``to``, among those that it has tags for, or for its only one: none where
    there is no tag, or the choice is still to be made.

    Raises:
        ValueError: the model cannot be asked for that language.
    """
    if tagged:
        require(to in ("", *tagged), f"--to {to}: this model translates into {', '.join(tagged)}: choose among these")
        return to or (tagged[0] if len(tagged) == 1 else "")
    targets = {target for _, target in directions}
    if len(targets) > 1:
        trained = ", ".join(dict.fromkeys(map("-".join, directions)))
        require(
            not to,
            f"--to {to}: this model was trained for {trained}, and has no language tags to be told by: leave --to out, "
            "or train one with corpora.tags=true",
        )
    require(to in ("", *targets), f"--to {to}: this model translates into {', '.join(targets)} alone: leave --to out")
    return ""
