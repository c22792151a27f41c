"""What a model thinks of given translations: the log-probability of each of their tokens (forced decoding)."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pipeline.data.batching import pad_sources
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID

BATCH = 16
"""Translations at once; their logits over the whole vocabulary are what takes memory."""


@torch.inference_mode()
def forced_log_probs(
    logits: Callable[[Tensor, Tensor], Tensor],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    device: torch.device,
) -> list[list[float]]:
    """Of every token of each target, and of its end.

    ``logits`` takes padded sources [B, S] and targets from begin of sentence on [B, T], and gives [B, T, V].
    """
    found = []
    for start in range(0, len(sources), BATCH):
        source = pad_sources(sources[start : start + BATCH]).to(device)
        ended = [torch.tensor([*target, EOS_ID]) for target in targets[start : start + BATCH]]
        target_out = pad_sequence(ended, batch_first=True, padding_value=PAD_ID).to(device)
        target_in = F.pad(target_out[:, :-1], (1, 0), value=BOS_ID)
        log_probs = logits(source, target_in).float().log_softmax(-1).gather(-1, target_out[:, :, None])[:, :, 0]
        found += [row[: len(target)].tolist() for row, target in zip(log_probs, ended, strict=True)]
    return found
