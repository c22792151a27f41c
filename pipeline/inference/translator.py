"""Text in, text out: the one door to a trained model.

A translation depends on its sentence and the search's settings, and on nothing else: not on neighbours, batch size or
order. Sentences are sorted by length into batches under a token budget, and equal ones are translated once.
"""

import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch

from models.search import Hypothesis
from pipeline.checkpoint import fingerprint, load_model
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.cleaning import normalise
from pipeline.data.tokenizer import UNK_ID, Tokenizers
from pipeline.inference.banned import pattern, spellings
from pipeline.inference.engine import Engine, EnsembleEngine, Source, TorchEngine, default_device
from pipeline.inference.risk import choose
from pipeline.inference.segmentation import blank, split


class Sentence(NamedTuple):
    """A text to translate, and what is asked of its translation."""

    text: str

    prefix: str = ""
    """What it must begin with."""

    terms: tuple[str, ...] = ()
    """What it must contain."""


COMPUTE_TYPES = {"auto": "default", "32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Precisions by CTranslate2's names."""


class Translation(NamedTuple):
    text: str
    """One line of plain text."""

    score: float
    """Length-normalised log-probability (``models.search``); of a text translated in parts, the parts' mean."""

    finished: bool
    """False if the length limit stopped it."""

    ids: tuple[int, ...] = ()
    """Its pieces, as they were found; of a text translated in parts, one part's after the other's."""


class Translator:
    """An engine with its tokenizers, and the normalisation and search settings of its configuration."""

    def __init__(self, engine: Engine, tokenizers: Tokenizers, configuration: Configuration, to: str = ""):
        """
        Args:
            to: the language to translate into, of a model that has several.

        Raises:
            ValueError: the model has no tag for it.
        """
        corpora, languages = configuration.corpora, tokenizers.languages
        require(
            not to or to in languages,
            f"--to {to}: this model translates into {', '.join(languages)}: choose among these"
            if languages
            else f"--to {to}: this model has no language tags, and translates into {corpora.target_language} unasked: "
            "leave --to out",
        )
        self.to = to or (languages[0] if len(languages) == 1 else "")
        self.engine = engine
        self.tokenizers = tokenizers
        self.configuration = configuration
        self.unicode_form = configuration.cleaning.unicode_form
        self.search = configuration.search
        directions = [(corpus.source_language, corpus.target_language) for corpus in corpora.each]
        self.languages = next((each for each in directions if each[1] == self.to), directions[0])

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
            ValueError, OSError: as ``pipeline.checkpoint.load_model``, or the models have different tokenizers, or none
                for that language.
        """
        paths = [paths] if isinstance(paths, str | Path) else paths
        require(len(paths) > 0, "there is no model: name at least one")
        if engine != "dragoman":
            require(len(paths) == 1, f"engine={engine} translates with one model: name one exported folder")
            return cls(*_exported(engine, paths[0], device, precision), to)
        loaded = [load_model(path) for path in paths]
        first = loaded[0]
        for path, other in zip(paths, loaded, strict=True):
            require(
                fingerprint(other.tokenizers) == fingerprint(first.tokenizers),
                f"{paths[0]} and {path} have different tokenizers and cannot translate as one: train them on the same "
                "prepared data",
            )
        engines = [TorchEngine(each.model.to(device or default_device()), precision) for each in loaded]
        engine = engines[0] if len(engines) == 1 else EnsembleEngine(engines)
        return cls(engine, first.tokenizers, first.configuration, to)

    def into(self, language: str) -> "Translator":
        """The same model, asked for that language; for none, as it is.

        Raises:
            ValueError: the model has no tag for it.
        """
        return Translator(self.engine, self.tokenizers, self.configuration, language) if language else self

    def translate(self, sentences: Sequence[str | Sentence], search: SearchConfig | None = None) -> list[str]:
        """The best translation of each sentence; ``search`` takes the place of the model's own settings.

        A sentence without a visible character gives an empty one. One beyond ``search.max_source_tokens`` is translated
        in parts, with a warning; its prefix is the first part's, and no part is asked for its terms. A prefix or term
        that the model cannot spell is left out, with a warning.

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
        rows = iter(sentences)
        for first in itertools.count(1, chunk):
            if not (some := list(itertools.islice(rows, chunk))):
                return
            yield from self.hypotheses(some, search, num_hypotheses, itertools.count(first))

    def hypotheses(
        self,
        sentences: Sequence[str | Sentence],
        search: SearchConfig | None = None,
        num_hypotheses: int = 1,
        numbers: Iterable[int] | None = None,
    ) -> list[list[Translation]]:
        """The best translations of each sentence, best first: one to ``num_hypotheses`` of them.

        ``numbers`` are the sentences' own in warnings; without them they are numbered from 1.

        Raises:
            ValueError: ``search`` allows no translation, or one too long for the model's positions, or has fewer beams
                than hypotheses are wanted.
        """
        search = search or self.search
        self.engine.require(search)
        require(
            num_hypotheses >= 1 and (search.method == "sampling" or num_hypotheses <= search.beam_size),
            f"{num_hypotheses} hypotheses cannot come of search.beam_size={search.beam_size}: raise it",
        )
        rows = self._encode(
            [Sentence(each) if isinstance(each, str) else each for each in sentences],
            search.max_source_tokens,
            numbers or itertools.count(1),
        )
        # Longest first: a batch that is too much for the memory is met at once.
        distinct = sorted({source for row in rows for source in row}, key=lambda source: (-len(source.ids), source))
        found = dict(zip(distinct, self.search_for(distinct, search, num_hypotheses), strict=True))
        return [_join([found[source] for source in row], blank(self.languages[1])) for row in rows]

    def search_for(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Translation]]:
        """What the engine finds for each source, as text: each text once, banned ones last and only where there are no
        others."""
        spaced = blank(self.languages[1]) != ""
        phrases = [normalise(phrase, self.unicode_form) for phrase in search.banned]
        banned = {"banned": spellings(phrases, self.tokenizers.target, spaced)} if phrases else {}
        hypotheses = self.engine.search(sources, search, _candidates(search, num_hypotheses), **banned)
        refused = pattern(phrases, spaced) if phrases else None
        return [
            _distinct(_best_first(texts, search, refused, self.languages[1]))[:num_hypotheses]
            for texts in self._texts(hypotheses)
        ]

    def source_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text's pieces, after the tag of the language asked for; none of a blank text.

        Raises:
            ValueError: the model has several languages, and none was asked for.
        """
        languages = self.tokenizers.languages
        require(bool(self.to) or not languages, f"this model translates into {', '.join(languages)}: choose with --to")
        encoded = self.tokenizers.encode_source([normalise(text, self.unicode_form) for text in texts], self.to)
        return [ids if len(ids) > bool(self.to) else [] for ids in encoded]

    def _encode(self, sentences: Sequence[Sentence], max_tokens: int, numbers: Iterable[int]) -> list[list[Source]]:
        """For each sentence the sources of its parts: one part, several if it is too long, none if it is blank."""

        def count(texts: list[str]) -> list[int]:
            return [len(ids) for ids in self.source_ids(texts)]

        rows = []
        encoded = self.source_ids([sentence.text for sentence in sentences])
        for number, sentence, ids in zip(numbers, sentences, encoded, strict=False):
            prefix, terms = self._asked(sentence, number) if ids else ((), ())
            if len(ids) <= max_tokens:
                rows.append([Source(tuple(ids), prefix, terms)] if ids else [])
                continue
            text = normalise(sentence.text, self.unicode_form)
            divided = split(text, count, max_tokens, self.languages[0])
            parts = [tuple(part) for part in self.source_ids(divided) if part]
            warnings.warn(
                f"sentence {number} has {len(ids)} source tokens, more than search.max_source_tokens={max_tokens}: "
                f"it is translated in {len(parts)} parts{', without its terms' if terms else ''}",
                stacklevel=4,
            )
            rows.append([Source(parts[0], prefix), *map(Source, parts[1:])])
        return rows

    def _asked(self, sentence: Sentence, number: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Prefix and terms in pieces."""
        if not (sentence.prefix or sentence.terms):
            return (), ()
        texts = [normalise(text, self.unicode_form) for text in (sentence.prefix, *sentence.terms)]
        encoded = []
        for text, ids in zip(texts, self.tokenizers.target.encode(texts), strict=True):
            if UNK_ID in ids:
                warnings.warn(
                    f'sentence {number}: the model cannot spell "{text}", which its translation is to have: it is left '
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


def _exported(
    engine: str, folder: str | Path, device: str | torch.device | None, precision: str
) -> tuple[Engine, Tokenizers, Configuration]:
    try:
        module = import_module(f"pipeline.inference.{engine}_engine")
    except ModuleNotFoundError as error:
        raise ValueError(f"engine={engine} needs {error.name}: pip install 'dragoman[export]'") from None
    if engine == "ctranslate2":
        kind = "auto" if device is None else torch.device(device).type
        return module.load(folder, kind, COMPUTE_TYPES[precision])
    require(precision in ("auto", "32"), f"precision={precision}: engine={engine} computes as the export was written")
    return module.load(folder)


def _candidates(search: SearchConfig, num_hypotheses: int) -> int:
    """How many hypotheses an engine is asked for, when so many translations are wanted."""
    of_least_risk = search.minimum_bayes_risk != "none"
    if search.method == "sampling":
        return max(search.candidates, num_hypotheses) if of_least_risk else num_hypotheses
    # Different pieces may spell the same text, or a banned one, so of a list the engine is asked for all it can give.
    return search.beam_size if num_hypotheses > 1 or of_least_risk or search.banned else 1


def _best_first(
    translations: list[Translation], search: SearchConfig, banned: re.Pattern | None, language: str
) -> list[Translation]:
    """Without banned ones, unless there are no others, and with the one of least risk at the front."""
    if banned:
        translations = [each for each in translations if not banned.search(each.text)] or translations
    if search.minimum_bayes_risk != "none":
        best = choose([each.text for each in translations], search.minimum_bayes_risk, language)
        translations = [translations[best], *translations[:best], *translations[best + 1 :]]
    return translations


def _distinct(translations: list[Translation]) -> list[Translation]:
    """Each text once, in the place of its first."""
    found: dict[str, Translation] = {}
    for each in translations:
        found.setdefault(each.text, each)
    return list(found.values())


def _join(parts: list[list[Translation]], between: str) -> list[Translation]:
    """The parts' best translations one after the other, then their second ones, and so on."""
    if not parts:
        return [Translation("", 0.0, True)]
    return [
        Translation(
            between.join(part.text for part in parts),
            sum(part.score for part in parts) / len(parts),
            all(part.finished for part in parts),
            tuple(itertools.chain.from_iterable(part.ids for part in parts)),
        )
        for parts in zip(*parts, strict=False)  # the shortest list decides
    ]
