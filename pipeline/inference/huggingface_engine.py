"""A model that was exported to Hugging Face's transformers, as an engine: to verify the export, and to compare with."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, LogitsProcessor
from transformers.utils.logging import disable_progress_bar

from models.length import LENGTH_NORMALISATIONS
from models.rules import IMPOSSIBLE
from models.search import Hypothesis
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers
from pipeline.inference.engine import Source, default_device
from pipeline.inference.exported import damaged, read_small_files, require_as_ours, require_free
from pipeline.inference.forced_decoding import forced_log_probs
from pipeline.inference.vocabulary import Vocabulary


def load(folder: str | Path) -> tuple["HuggingFaceEngine", Tokenizers, Configuration]:
    """An engine for an exported folder, with what a ``Translator`` needs beside it."""
    engine = HuggingFaceEngine(folder)
    return engine, engine.tokenizers, engine.configuration


class HuggingFaceEngine:
    """The model of a folder that ``scripts/export.py --format huggingface`` wrote; on a CPU it computes in 32 bits.

    Raises:
        ValueError, OSError: there is no such model in the folder.
    """

    def __init__(self, folder: str | Path, device: str | torch.device | None = None):
        require(
            (Path(folder) / "generation_config.json").is_file(),
            f"{folder}: no model of transformers: give a folder that scripts/export.py --format huggingface wrote",
        )
        disable_progress_bar()
        self.tokenizers, self.configuration = read_small_files(folder)
        self.forbidden_ids = Vocabulary.of(self.tokenizers.target).forbidden_ids
        self.device = torch.device(device or default_device())
        try:
            model, loading = AutoModelForSeq2SeqLM.from_pretrained(
                folder, local_files_only=True, output_loading_info=True
            )
        except (SafetensorError, RuntimeError, OSError, ValueError) as error:
            raise ValueError(damaged(folder, error)) from error
        require(not loading["missing_keys"], damaged(folder, f"without {', '.join(loading['missing_keys'])}"))
        model = model.to(self.device).eval()
        self.model = model.float() if self.device.type == "cpu" else model

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
        limit = search.max_length(len(sources[0]))
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[_Stop(limit)],
            generation_config=GenerationConfig(
                num_beams=search.beam_size,
                num_return_sequences=num_hypotheses,
                early_stopping="never" if search.beam_size > 1 else False,  # only where nothing can become better
                length_penalty=search.length_penalty if search.length_normalisation == "average" else 0.0,
                max_length=1 + min(limit + 1, self.model.config.max_position_embeddings),  # see _Stop
                bad_words_ids=[[id] for id in self.forbidden_ids],
                pad_token_id=PAD_ID,
                bos_token_id=BOS_ID,
                eos_token_id=EOS_ID,
                decoder_start_token_id=BOS_ID,
            ),
        )
        rows = [row[1 : 1 + limit] for row in output.tolist()]
        finished = [EOS_ID in row for row in rows]
        targets = [row[: row.index(EOS_ID)] if end else row for row, end in zip(rows, finished, strict=True)]
        # Scores of its own would take the logits of all steps.
        repeated = [source for source in sources for _ in range(num_hypotheses)]
        log_probs = forced_log_probs(self._logits, repeated, targets, self.device)
        normalisation = LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty)
        hypotheses = []
        for target, end, each in zip(targets, finished, log_probs, strict=True):
            length = len(target) + end
            hypotheses.append(Hypothesis(target, normalisation.worth(sum(each[:length]), length), end))
        found = (hypotheses[first : first + num_hypotheses] for first in range(0, len(rows), num_hypotheses))
        return [[each for each in some if each.finished] or some for some in found]

    def _logits(self, source: Tensor, target_in: Tensor) -> Tensor:
        return self.model(source, attention_mask=source != PAD_ID, decoder_input_ids=target_in).logits


class _Stop(LogitsProcessor):
    """Beyond the limit a hypothesis that has not ended gets one token of padding, at a price that puts it behind all
    that have: else it may take their place."""

    def __init__(self, limit: int):
        self.limit = limit

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if input_ids.size(1) <= self.limit:
            return scores
        return torch.full_like(scores, IMPOSSIBLE).index_fill(1, input_ids.new_tensor([PAD_ID]), -1e4)
