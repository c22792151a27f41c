"""Whether an engine computes what a model computes: the same translations, and the scores that the model gives them."""

import time
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from models.encoder_decoder import EncoderDecoder
from models.length import LENGTH_NORMALISATIONS
from models.rules import IMPOSSIBLE
from models.search import Hypothesis
from pipeline.config import Configuration, SearchConfig
from pipeline.data.tokenizer import EOS_ID, Tokenizers
from pipeline.inference.engine import Engine, Source, TorchEngine
from pipeline.inference.evaluation import score
from pipeline.inference.forced_decoding import forced_log_probs
from pipeline.inference.translation import Sentence
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import ANY, Vocabulary

TIE = 1e-4
"""Tokens whose log-probabilities are no further apart are equally probable: 32 bits cannot tell which is more so."""


def score_errors(
    model: EncoderDecoder,
    sources: Sequence[Source],
    found: Sequence[Hypothesis],
    search: SearchConfig,
    vocabulary: Vocabulary = ANY,
) -> list[float]:
    """How far the score of each hypothesis is from what the model, on the CPU, gives to its tokens: whether or not the
    model would have found the same, an engine that computes the same gives the same score."""
    normalisation = LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty)
    errors = []
    for log_probs, (ids, reported, finished) in zip(_forced(model, sources, found, vocabulary), found, strict=True):
        length = len(ids) + finished
        errors.append(abs(normalisation.worth(sum(log_probs[:length]), length) - reported))
    return errors


def num_parted(
    model: EncoderDecoder,
    sources: Sequence[Source],
    ours: Sequence[Hypothesis],
    theirs: Sequence[Hypothesis],
    vocabulary: Vocabulary = ANY,
) -> int:
    """How many greedy translations part where the model does prefer one token to the other."""
    differ = [row for row in zip(sources, ours, theirs, strict=True) if row[1].ids != row[2].ids]
    if not differ:
        return 0
    sources, ours, theirs = zip(*differ, strict=True)
    parted = 0
    forced = (_forced(model, sources, each, vocabulary) for each in (ours, theirs))
    for one, other, *log_probs in zip(ours, theirs, *forced, strict=True):
        tokens = zip([*one.ids, EOS_ID], [*other.ids, EOS_ID], strict=False)
        place = next(place for place, (token, another) in enumerate(tokens) if token != another)
        parted += not abs(log_probs[0][place] - log_probs[1][place]) <= TIE
    return parted


def _forced(
    model: EncoderDecoder, sources: Sequence[Source], found: Sequence[Hypothesis], vocabulary: Vocabulary
) -> list[list[float]]:
    forbidden = torch.tensor(vocabulary.forbidden_ids)

    def logits(source: Tensor, target_in: Tensor) -> Tensor:
        return model(source, target_in).index_fill(-1, forbidden, IMPOSSIBLE)

    sources, targets = [source.ids for source in sources], [hypothesis.ids for hypothesis in found]
    return forced_log_probs(logits, sources, targets, torch.device("cpu"))


class Agreement(NamedTuple):
    """Of a model and an engine, about the translations of some lines."""

    beam_size: int
    lines: int
    equal: int
    """Lines that both translate alike."""

    parted: int
    """Of greedy search, sentences whose translations part where the model prefers one token to the other; of a beam
    search 0."""

    mean_error: float
    """Of the scores that the engine gives, over its translations."""

    greatest_error: float
    chrf: float
    """Of the engine's translations against the model's."""

    bleu: tuple[float, ...]
    """Of the model and of the engine against references, where there are any."""

    seconds: tuple[float, float]


def agreement(
    model: EncoderDecoder,
    engine: Engine,
    tokenizers: Tokenizers,
    configuration: Configuration,
    lines: Sequence[str | Sentence],
    references: Sequence[str] = (),
) -> Agreement:
    """Translate the lines with both, under the configuration's search."""
    vocabulary = Vocabulary.of(tokenizers.target)
    texts, seconds, recorded = [], [], (_Recorded(TorchEngine(model, vocabulary=vocabulary)), _Recorded(engine))
    for each in recorded:
        start = time.perf_counter()
        texts.append(Translator(each, tokenizers, configuration).translate(lines))
        seconds.append(time.perf_counter() - start)
    sources, (ours, theirs) = recorded[0].sources, (each.found for each in recorded)
    errors = score_errors(model, sources, theirs, configuration.search, vocabulary)
    language = configuration.corpora.target_language
    return Agreement(
        beam_size=configuration.search.beam_size,
        lines=len(lines),
        equal=sum(ours == theirs for ours, theirs in zip(*texts, strict=True)),
        parted=num_parted(model, sources, ours, theirs, vocabulary) if configuration.search.beam_size == 1 else 0,
        mean_error=mean(errors or [0.0]),
        greatest_error=max(errors, default=0.0),
        chrf=score(texts[1], texts[0], metrics=("chrf",))["chrf"].value,
        bleu=tuple(score(each, references, language, ("bleu",))["bleu"].value for each in texts if references),
        seconds=tuple(seconds),
    )


class _Recorded:
    """An engine, and what it has found to be best for each source."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.require = engine.require
        self.sources: list[Source] = []
        self.found: list[Hypothesis] = []

    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        found = self.engine.search(sources, search, num_hypotheses)
        self.sources += sources
        self.found += [best for best, *_ in found]
        return found
