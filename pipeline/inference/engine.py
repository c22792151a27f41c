"""Ids in, ids out: what a translator needs of an engine, and our own one, which searches with a model in torch."""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.cache import DecoderState
from models.encoder_decoder import EncoderDecoder
from models.length import LENGTH_NORMALISATIONS
from models.quantisation import LINEAR_MAPS, with_linear_maps
from models.rules import ForcedPrefix, MinLength, NoRepeatNgram, Rule
from models.search import Hypothesis, beam_search
from pipeline.config import SearchConfig
from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

FORBIDDEN_IDS = (PAD_ID, UNK_ID, BOS_ID)
"""Never generated: they stand for no text."""


CHECK_EVERY = 4
"""Lengths between two looks at what is done: on a GPU the host then runs ahead, and a few finished rows stay longer."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


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

    def __init__(self, model: EncoderDecoder, precision: str = "32", workers: int = 0):
        """
        Args:
            precision: ``32`` (as the model is), ``bf16``, or, on a CPU, ``int8``: of the products of matrices there.
            workers: batches translated at the same time on a CPU; 0 is one for each of its threads.
        """
        self.model, self.project = model, model.project
        if precision != "32":
            self.model = with_linear_maps(model, precision)
            self.project = LINEAR_MAPS[precision](model.output_weight)
        self.workers = workers or (torch.get_num_threads() if self.device.type == "cpu" else 1)
        keep_freed_memory()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def require(self, search: SearchConfig) -> None:
        search.require_room(self.model.config)

    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        batches = list(token_budget_batches(sources, search.tokens_per_batch))
        find = partial(self._search_batch, search=search, num_hypotheses=num_hypotheses)
        if self.workers == 1 or len(batches) < 2:
            return list(chain.from_iterable(map(find, batches)))
        # One thread of a worker's own wins over several that share each small product.
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            found = list(chain.from_iterable(pool.map(find, batches)))
        torch.set_num_threads(threads)  # what threads to come begin with
        return found

    @torch.inference_mode()
    def _search_batch(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Hypothesis]]:
        ids = [source.ids for source in sources]
        memory = self.model.encode(pad_sources(ids).to(self.device))
        return beam_search(
            self._step,
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

    def _step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self.model.advance(ids, state)
        return self.project(hidden[:, -1]), state

    def _rules(self, search: SearchConfig, sources: Sequence[Source]) -> list[Rule]:
        rules: list[Rule] = [MinLength(search.min_length, EOS_ID)] if search.min_length else []
        if search.no_repeat_ngram:
            rules.append(NoRepeatNgram(search.no_repeat_ngram))
        if any(source.prefix for source in sources):
            return [ForcedPrefix([source.prefix for source in sources], rules, self.device)]
        return rules


def token_budget_batches(sources: Sequence[Source], budget: int) -> Iterator[Sequence[Source]]:
    """Batches of at most ``budget`` source tokens, padding and end of sentence included, or of one sentence."""
    start = 0
    while start < len(sources):
        size = max(1, budget // (len(sources[start].ids) + 1))
        yield sources[start : start + size]
        start += size


def keep_freed_memory() -> None:
    """Have glibc keep what is freed for what is allocated next: a step's logits are as large again at the next one,
    and to give their memory back to the system each time takes a tenth of all time."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for setting in M_TRIM_THRESHOLD, M_MMAP_THRESHOLD:
            libc.mallopt(setting, 1 << 30)


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
