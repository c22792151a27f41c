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
from pipeline.data.tokenizer import Tokenizers
from pipeline.inference.engine import FORBIDDEN_IDS, Engine, Source, TorchEngine
from pipeline.inference.evaluation import score
from pipeline.inference.forced_decoding import forced_log_probs
from pipeline.inference.translator import Translator


def score_errors(
    model: EncoderDecoder, sources: Sequence[Source], found: Sequence[Hypothesis], search: SearchConfig
) -> list[float]:
    """How far the score of each hypothesis is from what the model, on the CPU, gives to its tokens: whether or not the
    model would have found the same, an engine that computes the same gives the same score."""
    forbidden = torch.tensor(FORBIDDEN_IDS)

    def logits(source: Tensor, target_in: Tensor) -> Tensor:
        return model(source, target_in).index_fill(-1, forbidden, IMPOSSIBLE)

    normalisation = LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty)
    sources, targets = [source.ids for source in sources], [hypothesis.ids for hypothesis in found]
    errors = []
    forced = forced_log_probs(logits, sources, targets, torch.device("cpu"))
    for log_probs, (ids, reported, finished) in zip(forced, found, strict=True):
        length = len(ids) + finished
        errors.append(abs(normalisation.worth(sum(log_probs[:length]), length) - reported))
    return errors


class Agreement(NamedTuple):
    """Of a model and an engine, about the translations of some lines."""

    beam_size: int
    lines: int
    equal: int
    """Lines that both translate alike."""

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
    lines: Sequence[str],
    references: Sequence[str] = (),
) -> Agreement:
    """Translate the lines with both, under the configuration's search."""
    texts, seconds, recorded = [], [], _Recorded(engine)
    for each in (TorchEngine(model), recorded):
        start = time.perf_counter()
        texts.append(Translator(each, tokenizers, configuration).translate(lines))
        seconds.append(time.perf_counter() - start)
    errors = score_errors(model, *zip(*recorded.found, strict=True), configuration.search) if recorded.found else [0.0]
    language = configuration.corpora.target_language
    return Agreement(
        beam_size=configuration.search.beam_size,
        lines=len(lines),
        equal=sum(ours == theirs for ours, theirs in zip(*texts, strict=True)),
        mean_error=mean(errors),
        greatest_error=max(errors),
        chrf=score(texts[1], texts[0], metrics=("chrf",))["chrf"].value,
        bleu=tuple(score(each, references, language, ("bleu",))["bleu"].value for each in texts if references),
        seconds=tuple(seconds),
    )


class _Recorded:
    """An engine, and what it has found to be best for each source."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.require = engine.require
        self.found: list[tuple[Source, Hypothesis]] = []

    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        found = self.engine.search(sources, search, num_hypotheses)
        self.found += zip(sources, (best for best, *_ in found), strict=True)
        return found
