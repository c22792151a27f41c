"""A model that was exported to Hugging Face's transformers, as an engine: to verify the export, and to compare with."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from models.length import LENGTH_NORMALISATIONS
from models.search import Hypothesis
from pipeline.config import Configuration, SearchConfig
from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers
from pipeline.inference.engine import FORBIDDEN_IDS, Source, default_device
from pipeline.inference.exported import read_small_files, require_as_ours, require_free
from pipeline.inference.forced_decoding import forced_log_probs


def load(folder: str | Path) -> tuple["HuggingFaceEngine", Tokenizers, Configuration]:
    """An engine for an exported folder, with what a ``Translator`` needs beside it."""
    return HuggingFaceEngine(folder), *read_small_files(folder)


class HuggingFaceEngine:
    """The model of a folder that ``scripts/export.py --format huggingface`` wrote; on a CPU it computes in 32 bits.

    Raises:
        ValueError, OSError: there is no such model in the folder.
    """

    def __init__(self, folder: str | Path, device: str | torch.device | None = None):
        disable_progress_bar()
        _, self.configuration = read_small_files(folder)
        self.device = torch.device(device or default_device())
        dtype = torch.float32 if self.device.type == "cpu" else "auto"
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True, dtype=dtype)
        self.model = model.to(self.device).eval()

    def require(self, search: SearchConfig) -> None:
        require_as_ours(search, self.configuration, "transformers")

    @torch.inference_mode()
    def search(
        self, sources: Sequence[Source], search: SearchConfig, num_hypotheses: int = 1
    ) -> list[list[Hypothesis]]:
        require_free(sources, "transformers")
        found: list[list[Hypothesis]] = []
        # A call has one limit, so a batch is of one length.
        for length, group in groupby((list(source.ids) for source in sources), len):
            rows = list(group)
            size = max(1, search.tokens_per_batch // (length + 1))
            for start in range(0, len(rows), size):
                found += self._search_batch(rows[start : start + size], search, num_hypotheses)
        return found

    def _search_batch(
        self, sources: list[list[int]], search: SearchConfig, num_hypotheses: int
    ) -> list[list[Hypothesis]]:
        ids = pad_sources(sources).to(self.device)
        normalisation = LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty)
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                num_beams=search.beam_size,
                num_return_sequences=search.beam_size,  # stopped ones may be among the best
                early_stopping="never" if search.beam_size > 1 else False,
                length_penalty=search.length_penalty if search.length_normalisation == "average" else 0.0,
                max_length=1 + search.max_length(len(sources[0])),
                bad_words_ids=[[id] for id in FORBIDDEN_IDS],
                pad_token_id=PAD_ID,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                decoder_start_token_id=BOS_ID,
            ),
        )
        rows = [row.tolist()[1:] for row in output.cpu()]
        targets = [row[: row.index(EOS_ID)] if EOS_ID in row else row for row in rows]
        # Its own scores would need the logits of all steps to be kept.
        repeated = [source for source in sources for _ in range(search.beam_size)]
        log_probs = forced_log_probs(self._logits, repeated, targets, self.device)
        hypotheses = []
        for row, target, each in zip(rows, targets, log_probs, strict=True):
            finished = EOS_ID in row
            length = len(target) + finished
            hypotheses.append(Hypothesis(target, normalisation.worth(sum(each[:length]), length), finished))
        beams = (hypotheses[first : first + search.beam_size] for first in range(0, len(rows), search.beam_size))
        return [([each for each in beam if each.finished] or beam)[:num_hypotheses] for beam in beams]

    def _logits(self, source: Tensor, target_in: Tensor) -> Tensor:
        return self.model(source, attention_mask=source != PAD_ID, decoder_input_ids=target_in).logits
