"""Ids in, ids out: what a translator needs of an engine, and our own one, which searches with a model in torch."""

import copy
import ctypes
import hashlib
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import cache, partial
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.cache import DecoderState
from models.coverage import Coverage, attention_to_source, coverage
from models.encoder_decoder import EncoderDecoder, Memory
from models.ensemble import Ensemble, EnsembleState
from models.length import LENGTH_NORMALISATIONS
from models.linear_maps import LINEAR_MAPS, with_linear_maps
from models.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram, Rule
from models.sampling import sample
from models.search import Hypothesis, beam_search
from models.terms import Progress
from pipeline.config import SearchConfig, require, require_positions
from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID
from pipeline.inference.vocabulary import ANY, Vocabulary

CHECK_EVERY = 4
"""Lengths between two looks at what is done: on a GPU the host then runs ahead, and a few finished rows stay longer."""


ENCODED_AT_ONCE = 1024
"""Tokens of sources, padding included, on a CPU."""

ALIKE = 1.125
"""Sentences are mixed where a batch has at most so many times the tokens, padding included, that it had before."""


NOTHING_FOUND = Hypothesis([], float("-inf"), False)
"""Where rules leave nothing that could be said."""


B, F = TypeVar("B"), TypeVar("F")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of malloc.h


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
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        num_hypotheses: int = 1,
        banned: Sequence[Sequence[int]] = (),
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of every source, best first: one to ``num_hypotheses`` of them. The engine makes its own
        batches, for which ``sources`` come longest first. No hypothesis contains one of ``banned``, which is
        ``search.banned`` in pieces; an engine that refuses the setting is never given any."""


class TorchEngine:
    """Our own model and search."""

    def __init__(self, model: EncoderDecoder, precision: str = "32", workers: int = 0, vocabulary: Vocabulary = ANY):
        """
        Args:
            precision: ``32`` (as the model is), ``bf16``, or, on a CPU, ``int8``: of the products of matrices there, on
                a GPU of everything. ``auto`` is ``bf16`` on a GPU that has it, and else ``32``.
                On a CPU, the weights are those of the model as it is now: one that is trained on needs a new engine.
            workers: batches translated at the same time on a CPU; 0 is one for each of its threads.
            vocabulary: what is known of the target's pieces.

        Raises:
            ValueError: ``int8`` on a GPU.
        """
        device = next(model.parameters()).device
        if precision == "auto":
            precision = "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "32"
        require(
            precision != "int8" or device.type == "cpu",
            "precision=int8 is for a CPU only: choose bf16 or 32 on a GPU, or device=cpu",
        )
        self.model, self.project, self.vocabulary = model, model.project, vocabulary
        if precision == "bf16" and device.type == "cuda":
            self.model = copy.deepcopy(model).bfloat16()
            self.project = self.model.project
        elif device.type == "cpu":
            self.model = with_linear_maps(model, precision)
            self.project = LINEAR_MAPS[precision](model.output_weight)
        self.workers = workers or (torch.get_num_threads() if device.type == "cpu" else 1)
        keep_freed_memory()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def require(self, search: SearchConfig) -> None:
        _require([self], search)

    def search(
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        num_hypotheses: int = 1,
        banned: Sequence[Sequence[int]] = (),
    ) -> list[list[Hypothesis]]:
        return _search([self], sources, search, num_hypotheses, banned)

    def start(self, memory: Memory) -> DecoderState:
        return self.model.start(memory)

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        hidden, state = self.model.advance(ids, state)
        return self.project(hidden[:, -1]), state


class EnsembleEngine:
    """Several models with the same tokenizers, which translate as one (``models.ensemble``)."""

    def __init__(self, engines: Sequence[TorchEngine]):
        self.engines = engines

    def require(self, search: SearchConfig) -> None:
        _require(self.engines, search)

    def search(
        self,
        sources: Sequence[Source],
        search: SearchConfig,
        num_hypotheses: int = 1,
        banned: Sequence[Sequence[int]] = (),
    ) -> list[list[Hypothesis]]:
        return _search(self.engines, sources, search, num_hypotheses, banned)


def _require(engines: Sequence[TorchEngine], search: SearchConfig) -> None:
    """:raises ValueError: these settings contradict each other or ask for what one of the models cannot do."""
    weights = search.ensemble_weights
    require(
        len(weights) in (0, len(engines)),
        f"search.ensemble_weights={weights} must be as many as the models, which are {len(engines)}: give one for "
        "each, or none",
    )
    if search.method == "sampling":
        for name, neutral in (("coverage_penalty", 0), ("diverse_groups", 1)):
            require(
                getattr(search, name) == neutral,
                f"search.{name}={getattr(search, name)} chooses among the hypotheses of a beam, of which "
                f"search.method=sampling has none: set it to {neutral}",
            )
    for engine in engines:
        search.require_room(engine.model.config)
        if search.coverage_penalty:
            attention_to_source(engine.model)


def _require_possible(engines: Sequence[TorchEngine], sources: Sequence[Source], search: SearchConfig) -> None:
    """:raises ValueError: what a source's translation is asked to contain cannot be written, or not like this."""
    terms = any(source.terms for source in sources)
    require(not terms or search.method == "beam", "terms are met by a beam search: set search.method=beam")
    require(
        not terms or search.diverse_groups == 1,
        f"terms and search.diverse_groups={search.diverse_groups} both divide the beam: set search.diverse_groups=1",
    )
    for source in sources:
        for name, ids in (("prefix", source.prefix), *(("term", term) for term in source.terms)):
            require(
                not set(ids) & {*engines[0].vocabulary.forbidden_ids, EOS_ID},
                f"the {name} of tokens {list(ids)} has a character that the vocabulary lacks: leave it out",
            )
        if source.prefix or source.terms:
            for engine in engines:
                require_positions(engine.model.config, _max_length(source, search), "a prefix or terms")


def _max_length(source: Source, search: SearchConfig) -> int:
    """What is asked for always has room, and after terms also the end of sentence. A prefix beyond the limit stays
    without an end, since what would follow it is not wanted."""
    asked = len(source.prefix) + Progress.start(source.terms).need
    return max(search.max_length(len(source.ids)), asked + bool(source.terms))


def _search(
    engines: Sequence[TorchEngine],
    sources: Sequence[Source],
    search: SearchConfig,
    num_hypotheses: int,
    banned: Sequence[Sequence[int]],
) -> list[list[Hypothesis]]:
    _require_possible(engines, sources, search)
    workers = engines[0].workers
    batches = fair_batches([len(source.ids) + 1 for source in sources], search.tokens_per_batch, workers)
    with ExitStack() as listening:
        decoders = engines
        if search.coverage_penalty:
            decoders = [
                listening.enter_context(coverage(engine.model, engine.step, search.coverage_penalty))
                for engine in engines
            ]
        options = {"search": search, "num_hypotheses": num_hypotheses, "banned": banned}
        find = partial(_search_batch, decoders, vocabulary=engines[0].vocabulary, **options)
        given = [[sources[number] for number in batch] for batch in batches]
        found = list(map(find, given)) if workers == 1 else _in_threads(find, given, workers)
    hypotheses = dict(zip(chain.from_iterable(batches), chain.from_iterable(found), strict=True))
    return [hypotheses[number] for number in range(len(sources))]


@cache
def _threads(workers: int) -> ThreadPoolExecutor:
    """Threads for all engines of this process. They stay, since each has memory of its own, and what new ones get is
    cold. One thread of a worker's own wins over several that share each small product, even where there is but one."""
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,))


def _in_threads(find: Callable[[B], F], batches: Sequence[B], workers: int) -> list[F]:
    """What is found in each batch; when one fails, or the wait is interrupted, none is still searched in the end."""
    threads = torch.get_num_threads()
    futures = [_threads(workers).submit(find, batch) for batch in batches]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)
        torch.set_num_threads(threads)  # what threads to come begin with


@torch.inference_mode()
def _search_batch(
    decoders: Sequence[TorchEngine] | Sequence[Coverage],
    sources: Sequence[Source],
    search: SearchConfig,
    num_hypotheses: int,
    banned: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
) -> list[list[Hypothesis]]:
    device = decoders[0].device
    states = [decoder.start(memory_of(sources, decoder.model, device)) for decoder in decoders]
    bonus = decoders[0].bonus if search.coverage_penalty else None
    if len(decoders) == 1:
        step, [state] = decoders[0].step, states
    else:
        steps, forbidden = [each.step for each in decoders], vocabulary.forbidden_ids
        step = Ensemble(steps, forbidden, search.ensemble, search.ensemble_weights).step
        state = EnsembleState(tuple(states))
        if search.coverage_penalty:
            bonus = partial(_mean_bonus, decoders)
    limits = torch.tensor([_max_length(source, search) for source in sources], device=device)
    options = {
        "num_hypotheses": num_hypotheses,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        "forbidden_ids": vocabulary.forbidden_ids,
        "length": LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty),
        "repetition": search.repetition_penalty,
        "rules": rules_of(search, sources, banned, device),
    }
    if search.method == "sampling":
        found = sample(
            step,
            state,
            limits,
            seeds=[_seed(search.seed, source.ids) for source in sources],
            temperature=search.temperature,
            top_k=search.top_k,
            top_p=search.top_p,
            **options,
        )
    else:
        found = beam_search(
            step,
            state,
            limits,
            beam_size=search.beam_size,
            terms=[source.terms for source in sources] if any(source.terms for source in sources) else (),
            words=vocabulary.words,
            bonus=bonus,
            groups=search.diverse_groups,
            diversity=search.diversity_penalty,
            check_every=1 if device.type == "cpu" else CHECK_EVERY,
            **options,
        )
    return [hypotheses or [NOTHING_FOUND] for hypotheses in found]


def memory_of(sources: Sequence[Source], model: EncoderDecoder, device: torch.device) -> Memory:
    """The sources, encoded; on a CPU a few at a time: they come longest first, and neighbours need less padding."""
    lengths = [len(source.ids) + 1 for source in sources]
    together = token_budget_batches(lengths, ENCODED_AT_ONCE) if device.type == "cpu" else [range(len(sources))]
    padded = [pad_sources([sources[number].ids for number in numbers]).to(device) for numbers in together]
    parts = [(part, max(lengths) - part.keys.size(1)) for part in map(model.encode, padded)]
    states = [pad(part.states, (0, 0, 0, missing)) for part, missing in parts]
    return Memory(torch.cat(states), torch.cat([pad(part.keys, (0, missing)) for part, missing in parts]))


def _mean_bonus(decoders: Sequence[Coverage], state: EnsembleState) -> Tensor:
    return sum(each.bonus(part) for each, part in zip(decoders, state.states, strict=True)) / len(decoders)


def rules_of(
    search: SearchConfig, sources: Sequence[Source], banned: Sequence[Sequence[int]], device: torch.device
) -> list[Rule]:
    """What ``search`` forbids in the translations of these sources."""
    rules: list[Rule] = [MinLength(search.min_length, EOS_ID)] if search.min_length else []
    if search.no_repeat_ngram:
        rules.append(NoRepeatNgram(search.no_repeat_ngram))
    if banned:
        rules.append(BannedPhrases(banned, device))
    if any(source.prefix for source in sources):
        return [ForcedPrefix([source.prefix for source in sources], rules, device)]
    return rules


def _seed(seed: int, ids: Sequence[int]) -> int:
    """Below 2**63, and the same in every process."""
    digest = hashlib.blake2b(repr((seed, *ids)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def fair_batches(lengths: Sequence[int], budget: int, workers: int) -> list[range]:
    """Numbers of sentences, in batches of at most ``budget`` tokens, padding included, or of one sentence: all workers
    get as many batches as the busiest must have, with the least budget for which that is so. The last batch of each are
    dealt out like cards, where they are alike. So workers end together. ``lengths`` come longest first."""

    def rounds(budget: int) -> int:
        return -(-len(token_budget_batches(lengths, budget)) // workers)

    least = 1 + bisect_left(range(1, budget), -rounds(budget), key=lambda less: -rounds(less))
    batches = token_budget_batches(lengths, least)
    if len(batches) < workers:
        return batches
    last = range(batches[-workers].start, len(lengths))
    dealt = [last[first::workers] for first in range(workers)]
    most = min(budget, ALIKE * least)
    alike = all(len(batch) * lengths[batch.start] <= most for batch in dealt)
    return batches[:-workers] + dealt if alike else batches


def token_budget_batches(lengths: Sequence[int], budget: int) -> list[range]:
    """Numbers of sentences, in batches of at most ``budget`` tokens, padding included, or of one sentence."""
    batches: list[range] = []
    while (start := batches[-1].stop if batches else 0) < len(lengths):
        batches.append(range(start, min(len(lengths), start + max(1, budget // lengths[start]))))
    return batches


def keep_freed_memory() -> None:
    """Have glibc keep what is freed for what is allocated next: a step's logits are as large again at the next one,
    and to give their memory back to the system each time takes a tenth of all time. Threads have heaps of 64 MiB, which
    are given back when they are empty, unless more than that is to be left at their end."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        for setting, size in (M_TRIM_THRESHOLD, 1 << 30), (M_MMAP_THRESHOLD, 1 << 30), (M_TOP_PAD, 1 << 26):
            libc.mallopt(setting, size)


def default_device() -> torch.device:
    """A GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
