"""A model that was exported to CTranslate2, as an engine: the same translations, faster on CPUs.

What the two searches do alike is passed on, and what they do not is refused. One difference is left: a beam search of
CTranslate2 stops when a number of hypotheses are finished, ours when no living one can become better. With ``PATIENCE``
the two agree on nearly every sentence; where they do not, theirs has the lower score.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import ctranslate2
import torch

from models.search import Hypothesis
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.tokenizer import EOS_ID, Tokenizers
from pipeline.inference.engine import Source
from pipeline.inference.exported import damaged, pieces, read_small_files, require_as_ours, require_free

PATIENCE = 1.2
"""A beam search goes on until this many times ``beam_size`` hypotheses are finished. Of 1,000 sentences of Multi30k
eight lost by stopping there. By the engine's own default, 1, 25 did, in 6% less time; by 2, one, in 10% more."""

BATCHES_PER_WORKER = 2
"""At least, where there are sentences enough: many let workers finish together, few are larger and so faster."""

MOST_TOKENS_ON_CPU = 640
"""Of sources in a batch there: 1,024 took 7 to 13% more time in 8 bits, 384 took 6 to 8% more in 32."""


def load(
    folder: str | Path, device: str = "auto", compute_type: str = "default"
) -> tuple["CTranslate2Engine", Tokenizers, Configuration]:
    """An engine for an exported folder, with what a ``Translator`` needs beside it."""
    engine = CTranslate2Engine(folder, device, compute_type)
    return engine, engine.tokenizers, engine.configuration


class CTranslate2Engine:
    """The model of a folder that ``scripts/export.py --format ctranslate2`` wrote.

    Args:
        device: ``cpu``, ``cuda``, or ``auto``: a GPU where there is one.
        compute_type: of products; ``default`` is as the weights are stored, or the nearest that the device has.
        workers: batches translated at once, each by one thread; 0: as many as there are cores, or one on a GPU.

    Raises:
        ValueError, OSError: there is no such model in the folder, or the device has no such type.
    """

    def __init__(self, folder: str | Path, device: str = "auto", compute_type: str = "default", workers: int = 0):
        require(
            (Path(folder) / "model.bin").is_file(),
            f"{folder}: no model of CTranslate2: give a folder that scripts/export.py --format ctranslate2 wrote",
        )
        self.tokenizers, self.configuration = read_small_files(folder)
        self.source_pieces, self.target_pieces = (pieces(tokenizer) for tokenizer in self.tokenizers)
        self.target_ids = {piece: id for id, piece in enumerate(self.target_pieces)}
        if device == "auto":
            device = "cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        ctranslate2.set_log_level(logging.ERROR)  # it tells of every type that it replaces by the nearest
        self.workers = workers or (1 if device == "cuda" else os.cpu_count() or 1)
        threads = torch.get_num_threads()
        self.most_tokens = MOST_TOKENS_ON_CPU if device == "cpu" else sys.maxsize
        types = ctranslate2.get_supported_compute_types(device)
        require(
            compute_type == "default" or compute_type in types,
            f"--precision: CTranslate2 has no {compute_type} on this {device}, only {', '.join(sorted(types))}: leave "
            "it out for what the export was written in",
        )
        try:
            self.translator = ctranslate2.Translator(
                str(folder), device, compute_type=compute_type, inter_threads=self.workers, intra_threads=1
            )
        except RuntimeError as error:
            raise ValueError(damaged(folder, error)) from error
        torch.set_num_threads(threads)  # the engine sets it for the whole process

    def require(self, search: SearchConfig) -> None:
        require_as_ours(search, self.configuration, "CTranslate2")

    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        require_free(sources, "CTranslate2")
        limits = [search.max_length(len(source.ids)) for source in sources]
        found = self._search(
            sources, self._batches(sources, range(len(sources)), search), limits, search, num_hypotheses
        )
        # A batch has one limit, that of its longest source. What has ended within a sentence's own limit would have
        # done so under that as well; the few others are looked for again, among those of their limit.
        again: dict[int, list[int]] = {}
        for row, limit in enumerate(limits):
            if not all(hypothesis.finished and len(hypothesis.ids) < limit for hypothesis in found[row]):
                again.setdefault(limit, []).append(row)
        batches = (batch for rows in again.values() for batch in self._batches(sources, rows, search))
        # Stopped ones, too, are among the best of these.
        most = 1 if search.beam_size == 1 else round(PATIENCE * search.beam_size)
        for row, hypotheses in self._search(sources, batches, limits, search, most).items():
            found[row] = ([each for each in hypotheses if each.finished] or hypotheses)[:num_hypotheses]
        return [found[row] for row in range(len(sources))]

    def _batches(self, sources: Sequence[Source], rows: Sequence[int], search: SearchConfig) -> Iterator[Sequence[int]]:
        """The rows divided under the budget of tokens, so that there is something for every worker."""
        share = sum(len(sources[row].ids) + 1 for row in rows) // (BATCHES_PER_WORKER * self.workers)
        budget = min(search.tokens_per_batch, self.most_tokens, share)
        while rows:
            size = max(1, budget // (len(sources[rows[0]].ids) + 1))
            yield rows[:size]
            rows = rows[size:]

    def _search(
        self,
        sources: Sequence[Source],
        batches: Iterable[Sequence[int]],
        limits: Sequence[int],
        search: SearchConfig,
        num_hypotheses: int,
    ) -> dict[int, list[Hypothesis]]:
        """What is found for every row in the batches, under the limit of the batch's first."""
        results = {}
        for batch in batches:
            found = self.translator.translate_batch(
                [_spell(sources[row].ids, self.source_pieces) for row in batch],
                beam_size=search.beam_size,
                patience=PATIENCE if search.beam_size > 1 else 1,
                num_hypotheses=num_hypotheses,
                length_penalty=search.length_penalty if search.length_normalisation == "average" else 0,
                max_input_length=0,
                max_decoding_length=limits[batch[0]],
                min_decoding_length=0,
                return_scores=True,
                return_end_token=True,
                asynchronous=True,
            )
            results |= zip(batch, found, strict=True)
        return {row: self._read(result.result()) for row, result in results.items()}

    def _read(self, result: ctranslate2.TranslationResult) -> list[Hypothesis]:
        hypotheses = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self.target_ids[token] for token in tokens]
            finished = ids[-1:] == [EOS_ID]
            hypotheses.append(Hypothesis(ids[:-1] if finished else ids, score, finished))
        return hypotheses


def _spell(ids: Sequence[int], pieces: list[str]) -> list[str]:
    return [pieces[id] for id in ids]
