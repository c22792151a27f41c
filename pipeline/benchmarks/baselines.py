"""What others make of the same shape, in the plainest way, to measure against: joint vocabulary, all embeddings tied.

A baseline is a class with ``loss_sums(batch)``, as ``TranslationModule`` has it, and a name in ``BASELINES``.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ModelConfig
from models.loss import label_smoothed_cross_entropy
from models.positions import Sinusoidal
from pipeline.data.batching import Batch
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID


class TorchTransformer(nn.Module):
    """``torch.nn.Transformer`` between the paper's embeddings and a tied output layer."""

    def __init__(self, config: ModelConfig, num_words: int, smoothing: float):
        super().__init__()
        self.smoothing = smoothing
        self.embedding = nn.Embedding(num_words, config.d_model, padding_idx=PAD_ID)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.positions, self.dropout = Sinusoidal(), nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.d_model,
            config.num_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.d_ff,
            config.dropout,
            batch_first=True,
            norm_first=config.norm_order == "pre",
        )

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.positions.embed(self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)))

    def loss_sums(self, batch: Batch) -> tuple[Tensor, None]:
        length = batch.target_in.size(1)
        future = torch.ones(length, length, dtype=torch.bool, device=batch.target_in.device).triu(1)
        padding = batch.source == PAD_ID
        hidden = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_in),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = F.linear(hidden, self.embedding.weight)
        return label_smoothed_cross_entropy(logits.float(), batch.target_out, self.smoothing, PAD_ID), None


class Marian(nn.Module):
    """Hugging Face's ``MarianMTModel``, with torch's loss over its logits."""

    def __init__(self, config: ModelConfig, num_words: int, smoothing: float):
        super().__init__()
        try:
            from transformers import MarianConfig, MarianMTModel
        except ImportError as error:
            raise ValueError("--against marian needs transformers: pip install -e '.[export]'") from error
        self.smoothing = smoothing
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=num_words,
                d_model=config.d_model,
                encoder_layers=config.encoder_layers,
                decoder_layers=config.decoder_layers,
                encoder_attention_heads=config.num_heads,
                decoder_attention_heads=config.num_heads,
                encoder_ffn_dim=config.d_ff,
                decoder_ffn_dim=config.d_ff,
                dropout=config.dropout,
                activation_function="relu",
                init_std=config.d_model**-0.5,
                scale_embedding=True,
                pad_token_id=PAD_ID,
                eos_token_id=EOS_ID,
                decoder_start_token_id=BOS_ID,
            )
        )

    def loss_sums(self, batch: Batch) -> tuple[Tensor, None]:
        logits = self.model(
            input_ids=batch.source,
            attention_mask=(batch.source != PAD_ID).long(),
            decoder_input_ids=batch.target_in,
            use_cache=False,
        ).logits
        return label_smoothed_cross_entropy(logits.float(), batch.target_out, self.smoothing, PAD_ID), None


BASELINES = {"torch": TorchTransformer, "marian": Marian}
