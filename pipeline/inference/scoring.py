"""What a model, or several as one, think of given translations (forced decoding), and how else they would go on at a
place in one."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from models.ensemble import Ensemble, EnsembleState
from models.length import LENGTH_NORMALISATIONS
from models.search import normalised, require_numbers, score_targets
from pipeline.config import CorporaConfig, SearchConfig, require, require_positions
from pipeline.data.batching import Batch, BatchPlan, collate
from pipeline.data.cleaning import normalise
from pipeline.data.corpora import KINDS
from pipeline.data.lines import read_aligned, read_lines, shown
from pipeline.data.progress import progress
from pipeline.data.tokenizer import EOS_ID, PAD_ID, UNK_ID
from pipeline.inference.engine import EnsembleEngine, Source, TorchEngine, rules_of
from pipeline.inference.outputs import written
from pipeline.inference.translation import Translation
from pipeline.inference.translator import Translator


class PairScore(NamedTuple):
    score: float
    """Length-normalised log-probability, as of ``Translation``: what the search gives to this target where it finds
    it in these tokens and with its end; a penalty on coverage, which only a search adds, is not in it."""

    log_prob: float
    """Of the target's tokens and their end; -inf where it has a character that the model cannot write."""

    tokens: int
    """Of the target, with the end of sentence."""


def score_pairs(
    translator: Translator, pairs: Iterable[tuple[str, str]], search: SearchConfig | None = None
) -> Iterator[PairScore]:
    """The score of every pair of source and target, in order; only a chunk of the pairs is held at once.

    Each pair is scored as a whole, however long. A blank source has a blank target for certain, as in translating.

    Raises:
        ValueError: a pair is too long for the positions that the model has learned, or the model returns NaN.
    """
    search = search or translator.search
    engines = _engines(translator)
    rows = iter(pairs)
    for first in itertools.count(1, search.tokens_per_batch):
        if not (some := list(itertools.islice(rows, search.tokens_per_batch))):
            return
        sources = translator.source_ids([source for source, _ in some])
        targets = translator.tokenizers.target.encode(
            [normalise(target, translator.unicode_form) for _, target in some]
        )
        for row, (source, target) in enumerate(zip(sources, targets, strict=True), first):
            for engine in engines:
                require_positions(engine.model.config, max(len(source), len(target)) + 1, f"pair {row}")
        yield from score_ids(engines, sources, targets, search)


@torch.inference_mode()
def score_ids(
    engines: Sequence[TorchEngine],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    search: SearchConfig,
) -> list[PairScore]:
    """The score that one model, or several as one, give to every pair, both sides in pieces without the end of
    sentence."""
    length = LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty)
    found = [PairScore(-math.inf, -math.inf, len(ids) + 1) if ids else PairScore(0.0, 0.0, 0) for ids in targets]
    seen = [row for row, ids in enumerate(sources) if ids]  # a blank source is not shown to the model
    lengths = ([len(side[row]) for row in seen] for side in (sources, targets))
    budget = max(1, search.tokens_per_batch // len(engines))  # of all models' logits in memory at once
    for numbers in BatchPlan(*lengths, budget).batches()[0] if seen else []:
        rows = [seen[number] for number in numbers]
        batch = collate([(sources[row], targets[row]) for row in rows], update_tokens=0)
        target_out = batch.target_out.to(engines[0].device)
        totals = score_targets(
            _logits(engines, batch, search),
            target_out,
            pad_id=PAD_ID,
            forbidden_ids=engines[0].vocabulary.forbidden_ids,
            repetition=search.repetition_penalty,
        )
        counts = (target_out != PAD_ID).sum(1)
        columns = length.worth(totals, counts), totals, counts
        for row, *values in zip(rows, *(column.tolist() for column in columns), strict=True):
            found[row] = PairScore(*values)
    return found


def _engines(translator: Translator) -> Sequence[TorchEngine]:
    if isinstance(translator.engine, EnsembleEngine):
        return translator.engine.engines
    require(isinstance(translator.engine, TorchEngine), "an export gives no scores: name the run that it was made of")
    return [translator.engine]


def _logits(engines: Sequence[TorchEngine], batch: Batch, search: SearchConfig) -> Tensor:
    """What the models say of every token of the targets, [B, T, V]."""
    source, target_in = batch.source.to(engines[0].device), batch.target_in.to(engines[0].device)
    logits = [engine.project(engine.model.decode(target_in, engine.model.encode(source))) for engine in engines]
    if len(logits) == 1:
        return logits[0]
    forbidden = engines[0].vocabulary.forbidden_ids
    # An ensemble combines rows, whatever they are: here all positions, of which the models have just said this.
    ensemble = Ensemble([_said] * len(logits), forbidden, search.ensemble, search.ensemble_weights)
    combined, _ = ensemble.step(target_in.reshape(-1, 1), EnsembleState(tuple(each.flatten(0, 1) for each in logits)))
    return combined.view_as(logits[0])


def _said(_: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    return logits, logits


class Alternative(NamedTuple):
    probability: float
    """Of the first token after the prefix."""

    translation: Translation


@torch.inference_mode()
def alternatives(
    translator: Translator, sentence: str, prefix: str, count: int, search: SearchConfig | None = None
) -> list[Alternative]:
    """The most probable continuations of a translation that begins with ``prefix``, by their first token, which may be
    the end; nothing that ``search`` forbids is among them.

    Raises:
        ValueError: the sentence is blank or too long, the prefix cannot be spelled, more alternatives are wanted than
            there are tokens, or ``search`` draws samples.
    """
    search = search or translator.search
    engines = _engines(translator)
    require(search.method == "beam", "search.method=sampling draws, and alternatives are looked for: leave it out")
    translator.engine.require(search)
    [ids], [begun] = (
        translator.source_ids([sentence]),
        translator.tokenizers.target.encode([normalise(prefix, translator.unicode_form)]),
    )
    require(bool(ids), "the sentence is blank: give one with words in it")
    require(
        len(ids) <= search.max_source_tokens,
        f"the sentence has {len(ids)} tokens, more than search.max_source_tokens={search.max_source_tokens}: give a "
        "shorter one, or raise that",
    )
    require(UNK_ID not in begun, f'--prefix="{prefix}" has a character that the model cannot write: leave it out')
    batch = collate([(ids, begun)], update_tokens=0)
    logits = _logits(engines, batch, search)[:, -1]
    said = torch.tensor([begun], dtype=torch.long, device=logits.device)
    forbidden = said.new_tensor(engines[0].vocabulary.forbidden_ids)
    log_probs = normalised(logits, forbidden, said, search.repetition_penalty)
    require_numbers(log_probs)
    for rule in rules_of(search, [Source(tuple(ids))], translator.banned(search), logits.device):
        rule(log_probs, said, said.new_zeros(1))
    possible = int((log_probs > -math.inf).sum())
    require(1 <= count <= possible, f"{count} alternatives are not to be had: ask for 1 to {possible}")
    best, tokens = (column.tolist() for column in log_probs[0].exp().topk(count))
    asked = [Source(tuple(ids), (*begun, token)) for token in tokens if token != EOS_ID]
    going_on = iter(translator.search_for(asked, search))
    [ended], [text] = score_ids(engines, [ids], [begun], search), translator.tokenizers.target.decode([begun])
    end = Translation(text, ended.score, True, tuple(begun))
    return [
        Alternative(probability, end if token == EOS_ID else next(going_on)[0])
        for probability, token in zip(best, tokens, strict=True)
    ]


def read_pairs(source: str, target: str, table: str) -> Iterator[tuple[str, str]]:
    """The pairs of two line-aligned files, or of a file of both: two columns with a tab between, without a header, or
    ``.jsonl`` with ``source`` and ``target``.

    Raises:
        ValueError: neither or both are given, or, on the way, the files have not as many lines or a row is wrong.
    """
    require(
        bool(source) == bool(target) != bool(table),
        "give --source and --target, line by line, or --pairs: one file of both",
    )
    if source:
        rows = read_aligned([source, target])
    elif table.removesuffix(".gz").endswith(".jsonl"):
        rows = KINDS["jsonl"].read(CorporaConfig(), [table])
    else:
        rows = _columns(table)
    return ((row[0], row[1]) for row in rows)


def _columns(table: str) -> Iterator[list[str]]:
    for number, line in enumerate(read_lines(table), 1):
        cells = line.split("\t")
        require(len(cells) == 2, f"{shown(table)}, line {number}: {len(cells)} columns, where two are needed")
        yield cells


def write_scores(
    translator: Translator, pairs: Iterable[tuple[str, str]], search: SearchConfig, path: str, as_json: bool
) -> None:
    """Write a row per pair: its number, score, log-probability and tokens, separated by tabs or, with its texts, as a
    JSON object; what is not finite is null there."""
    mine, its = itertools.tee(pairs)
    with written(path) as file, progress("scoring") as advance:
        for number, (pair, found) in enumerate(zip(mine, score_pairs(translator, its, search), strict=True), 1):
            if as_json:
                values = {name: value if math.isfinite(value) else None for name, value in found._asdict().items()}
                row = json.dumps(dict(zip(("source", "target"), pair, strict=True)) | values, ensure_ascii=False)
            else:
                row = f"{number}\t{found.score:.6f}\t{found.log_prob:.6f}\t{found.tokens}"
            print(row, file=file)
            advance(1)
