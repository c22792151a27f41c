"""How good the model is now: loss over all validation tokens, BLEU and chrF of greedy translations of some sentences.

Every rank takes its share and all get the same scores: sums of losses are added up, translations are put back in their
order, each exactly once. Where the model has several directions each is scored by itself, and their mean is the score.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.utilities import rank_zero_only
from sacrebleu.metrics import BLEU
from sacrebleu.metrics.bleu import MAX_NGRAM_ORDER
from torch import distributed

from pipeline.checkpoint import written_whole
from pipeline.data.config import CorpusConfig
from pipeline.data.preparation import Prepared
from pipeline.inference.attention import attended
from pipeline.inference.attention_pictures import draw
from pipeline.inference.evaluation import bleu_tokenizer, score
from pipeline.inference.translator import Translator
from pipeline.training.module import TranslationModule

METRICS = {"bleu": "bleu", "chrf": "chrf", "loss": "valid_loss"}
"""The column of a validation's scores that ``trainer.metric`` names."""


SCORED = ("bleu", "chrf")
"""What translations are scored by."""


class Direction(NamedTuple):
    """Sentences from one language into another."""

    source_language: str
    target_language: str
    rows: list[int]
    """Those of the validation data that are translated."""

    @property
    def name(self) -> str:
        return f"{self.source_language}-{self.target_language}"


def directions(corpora: Sequence[CorpusConfig], corpus: Sequence[int], count: int) -> list[Direction]:
    """The directions of validation pairs, of which the numbers of their corpora are given, each with its share of
    ``count`` pairs, taken at even distances, and at least one; none where ``count`` is 0."""
    rows: dict[tuple[str, str], list[int]] = {}
    for row, number in enumerate(corpus if count else []):
        rows.setdefault((corpora[number].source_language, corpora[number].target_language), []).append(row)
    return [Direction(*languages, spread(found, max(1, count // len(rows)))) for languages, found in rows.items()]


def spread(rows: list[int], most: int) -> list[int]:
    """At most so many of them, at even distances.

    >>> spread([3, 5, 7, 9], 2)
    [3, 7]
    """
    count = min(most, len(rows))
    return [rows[i * len(rows) // count] for i in range(count)]


def too_short_for_bleu(references: Sequence[str], target_language: str) -> bool:
    """Whether hardly a reference has as many words as the longest n-gram that BLEU counts.

    Raises:
        ValueError: what tells the words of this language is not installed.
    """
    words = BLEU(tokenize=bleu_tokenizer(target_language)).tokenizer
    long = sum(len(words(text).split()) >= MAX_NGRAM_ORDER for text in references)
    return 10 * long < len(references)


class Validator:
    """Scores the model of ``module`` on the validation split."""

    def __init__(self, prepared: Prepared, module: TranslationModule):
        self.module = module
        self.tokenizers = prepared.tokenizers
        configuration = module.configuration
        limits = configuration.trainer
        if len(prepared.valid) == 0:
            raise ValueError("there is no validation data: set corpora.valid, or corpora.valid_size above 0")
        if not limits.validation_sentences and limits.metric != "loss":
            raise ValueError(
                f"trainer.validation_sentences=0 leaves trainer.metric={limits.metric} without a value: "
                "set trainer.metric=loss"
            )
        if limits.attention_pictures and not find_spec("matplotlib"):
            raise ValueError("trainer.attention_pictures=true needs matplotlib: pip install 'dragoman[plots]'")
        self.directions = directions(configuration.corpora.each, prepared.valid["corpus"], limits.validation_sentences)
        pairs = prepared.valid.select([row for direction in self.directions for row in direction.rows])
        self.sources, self.references = list(pairs["source"]), list(pairs["target"])
        self.languages = [self.tokenizers.language_of(ids) for ids in pairs["source_ids"]]
        short = [
            direction.name
            for direction, references in self.by_direction(self.references)
            if too_short_for_bleu(references, direction.target_language)
        ]
        if short and rank_zero_only.rank == 0:
            warnings.warn(
                f"hardly a validation reference of {', '.join(short)} has the {MAX_NGRAM_ORDER} words in a row that "
                "BLEU counts: it may stay at 0 while translations are right, and chrF tells more (trainer.metric=chrf)",
                stacklevel=2,
            )

    def by_direction(self, texts: Sequence[str]) -> Iterator[tuple[Direction, Sequence[str]]]:
        """Each direction with those of the texts, which stand as the references do, that are its own."""
        begin = 0
        for direction in self.directions:
            yield direction, texts[begin : (begin := begin + len(direction.rows))]

    def scores(self, trainer: Trainer) -> tuple[dict[str, float], list[str]]:
        """Columns of the log, and the translations."""
        with self.evaluating(trainer):
            scores = self.losses(trainer)
            translations = self.translations(trainer)
        if translations:
            scores |= self.scores_of(translations)
        return scores, translations

    def scores_of(self, translations: list[str]) -> dict[str, float]:
        """BLEU and chrF, and, where there are several directions, those of each."""
        pairs = zip(self.by_direction(translations), self.by_direction(self.references), strict=True)
        each = {
            direction.name: score(texts, references, direction.target_language, metrics=SCORED)
            for (direction, texts), (_, references) in pairs
        }
        scores = {name: mean(results[name].value for results in each.values()) for name in SCORED}
        if len(each) > 1:
            scores |= {f"{name}_{direction}": each[direction][name].value for name in SCORED for direction in each}
        return scores

    @property
    def columns(self) -> list[str]:
        """What ``scores_of`` adds to the log where there are several directions."""
        several = self.directions if len(self.directions) > 1 else []
        return [f"{name}_{direction.name}" for name in SCORED for direction in several]

    @property
    def translator(self) -> Translator:
        """Of the weights as they are now, which an engine may keep in another form."""
        return Translator.of(self.module.model, self.tokenizers, self.module.configuration)

    @contextmanager
    def evaluating(self, trainer: Trainer) -> Iterator[None]:
        was_training = self.module.training
        self.module.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            yield
        self.module.train(was_training)

    def losses(self, trainer: Trainer) -> dict[str, float]:
        sums = torch.zeros(3, dtype=torch.float64, device=self.module.device)
        for batch in trainer.datamodule.val_dataloader():
            sums += self.module.validation_sums(trainer.strategy.batch_to_device(batch))
        smoothed, plain, tokens = trainer.strategy.reduce(sums, reduce_op="sum").tolist()
        return {"valid_loss": smoothed / tokens, "valid_perplexity": math.exp(min(plain / tokens, 700))}

    def translations(self, trainer: Trainer) -> list[str]:
        """Greedy translations of all chosen sentences, in order."""
        rank, world_size = trainer.global_rank, trainer.world_size
        translator = self.translator
        greedy = replace(translator.search, beam_size=1)
        with memory_advice(f"lower search.tokens_per_batch={greedy.tokens_per_batch}"):
            mine = translator.translate_into(self.languages[rank::world_size], self.sources[rank::world_size], greedy)
        return in_order(everyones(mine, world_size))

    def draw_attention(self, trainer: Trainer, name: str, folder: Path, translation: str) -> Path:
        """Draw the cross-attention of the first sentence's translation as ``NAME.png``.

        Raises:
            ValueError: it is too long to be looked at as a whole.
        """
        with self.evaluating(trainer):
            shown = attended(self.translator.into(self.languages[0]), self.sources[0], translation)
        (path,) = draw({name: shown.kinds["cross"]}, folder)
        return path

    def write_samples(self, path: Path, translations: list[str], count: int = 3) -> str:
        """Write some of the translations with their sources and references; returns the text."""
        chosen = range(0, len(translations), max(1, len(translations) // count))[:count]
        text = "\n".join(
            f"  source       {self.sources[i]}\n  reference    {self.references[i]}\n  translation  {translations[i]}\n"
            for i in chosen
        )
        with written_whole(path) as new:
            new.write_text(text, encoding="utf-8")
        return text


def everyones(mine: list[str], world_size: int) -> list[list[str]]:
    """The lists of all ranks."""
    if world_size == 1:
        return [mine]
    gathered: list = [None] * world_size
    distributed.all_gather_object(gathered, mine)
    return gathered


def in_order(shares: Iterable[list[str]]) -> list[str]:
    """One list again from the shares ``items[rank::world_size]``.

    >>> in_order([["a", "c"], ["b"]])
    ['a', 'b', 'c']
    """
    return [item for row in zip_longest(*shares) for item in row if item is not None]


@contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Turns a device's lack of memory into a ``ValueError`` that says what helps."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the device has too little memory: {advice}; the last checkpoint is intact") from error
