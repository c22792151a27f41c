"""Ids in, ids out: what a translator needs of an engine, and our own one, which searches with a model in torch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from models.encoder_decoder import EncoderDecoder
from models.length import LENGTH_NORMALISATIONS
from models.rules import ForcedPrefix, MinLength, NoRepeatNgram, Rule
from models.search import Hypothesis, beam_search
from pipeline.config import SearchConfig
from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

FORBIDDEN_IDS = (PAD_ID, UNK_ID, BOS_ID)
"""Never generated: they stand for no text."""


CHECK_EVERY = 4
"""Lengths between two looks at what is done: on a GPU the host then runs ahead, and a few finished rows stay longer."""


class Source(NamedTuple):
    """One sentence to translate, in pieces."""

    ids: tuple[int, ...]
    """Of the source, without the end of sentence; at least one."""

    prefix: tuple[int, ...] = ()
    """What the translation must begin with."""

    terms: tuple[tuple[int, ...], ...] = ()
    """What it must contain, each in one piece."""


class Engine(Protocol):
    """Something that knows a model and finds translations with it."""

    def require(self, search: SearchConfig) -> None:
        """:raises ValueError: these settings ask for something that the engine or its model cannot do."""

    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of every source, best first: one to ``num_hypotheses`` of them. The engine makes its own
        batches, for which ``sources`` come longest first."""


class TorchEngine:
    """Our own model and search."""

    def __init__(self, model: EncoderDecoder):
        self.model = model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def require(self, search: SearchConfig) -> None:
        search.require_room(self.model.config)

    @torch.inference_mode()
    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = []
        while len(found) < len(sources):
            longest = sources[len(found)].ids
            batch = sources[len(found) :][: max(1, search.tokens_per_batch // (len(longest) + 1))]
            found += self._search_batch(batch, search, num_hypotheses)
        return found

    def _search_batch(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Hypothesis]]:
        ids = [source.ids for source in sources]
        memory = self.model.encode(pad_sources(ids).to(self.device))
        return beam_search(
            self.model.step,
            self.model.start(memory),
            torch.tensor([search.max_length(len(each)) for each in ids], device=self.device),
            beam_size=search.beam_size,
            bos_id=BOS_ID,
            eos_id=EOS_ID,
            forbidden_ids=FORBIDDEN_IDS,
            length=LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty),
            rules=self._rules(search, sources),
            num_hypotheses=num_hypotheses,
            check_every=1 if self.device.type == "cpu" else CHECK_EVERY,
        )

    def _rules(self, search: SearchConfig, sources: Sequence[Source]) -> list[Rule]:
        rules: list[Rule] = [MinLength(search.min_length, EOS_ID)] if search.min_length else []
        if search.no_repeat_ngram:
            rules.append(NoRepeatNgram(search.no_repeat_ngram))
        if any(source.prefix for source in sources):
            return [ForcedPrefix([source.prefix for source in sources], rules, self.device)]
        return rules


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
