"""A model as Hugging Face's transformers loads it: in the class there that computes the same function.

``MarianMTModel`` is the paper's Transformer, post-norm with sinusoids; ``PegasusForConditionalGeneration`` is that with
pre-norm, and ``BlenderbotForConditionalGeneration`` with pre-norm and learned positions. Their sinusoids have all sines
before all cosines and ours take turns, so the width is put into their order in every weight that meets it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ModelConfig
from models.transformer import Transformer
from pipeline.config import Configuration, require
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, SPECIAL_PIECES, Tokenizers
from pipeline.inference.exported import FORBIDDEN, num_positions, pieces
from pipeline.inference.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CLASSES = {
    ("post", "sinusoidal"): ("MarianConfig", "MarianMTModel"),
    ("pre", "sinusoidal"): ("PegasusConfig", "PegasusForConditionalGeneration"),
    ("pre", "learned"): ("BlenderbotConfig", "BlenderbotForConditionalGeneration"),
}
"""By the order of norms and the positions. All three name their parts alike."""

QUANTIZATIONS = ("float32", "float16", "bfloat16")


def refuse(model: ModelConfig) -> None:
    """:raises ValueError: no class there computes what the model computes."""
    has = {
        "architecture": ("transformer",),
        "attention": ("dot_product",),
        "attention_window": (0,),
        "num_key_value_heads": (0, model.num_heads),
        "norm": ("layer",),
        "activation": ("relu", "gelu"),
        "positions": [positions for order, positions in CLASSES if order == model.norm_order],
    }
    for name, values in has.items():
        require(
            getattr(model, name) in values,
            f"model.{name}={getattr(model, name)} is in no translation model of transformers with "
            f"model.norm_order={model.norm_order}: there it can be {' or '.join(map(str, values))}",
        )


def write(
    model: Transformer, tokenizers: Tokenizers, configuration: Configuration, quantization: str, folder: Path
) -> None:
    """Write what ``from_pretrained`` reads into an existing folder; the model is one that ``refuse`` lets pass."""
    import transformers

    config_class, model_class = CLASSES[model.config.norm_order, model.config.positions]
    vocabulary = _vocabulary(model)
    config = getattr(transformers, config_class)(**vocabulary, **_config(model.config, num_positions(configuration)))
    theirs = getattr(transformers, model_class)(config)
    forbidden_ids = Vocabulary.of(tokenizers.target).forbidden_ids
    theirs.load_state_dict(_weights(model, config, forbidden_ids))
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
        bad_words_ids=[[id] for id in forbidden_ids],
        num_beams=configuration.search.beam_size,
        length_penalty=configuration.search.length_penalty,
        early_stopping="never" if configuration.search.beam_size > 1 else False,  # only when nothing can become better
        max_length=1 + configuration.search.max_length(configuration.search.max_source_tokens),
    )
    transformers.utils.logging.disable_progress_bar()
    theirs.to(getattr(torch, quantization)).save_pretrained(folder)
    _write_tokenizer(tokenizers, config.max_position_embeddings, folder)
    (folder / "README.md").write_text(README, encoding="utf-8")


def _vocabulary(model: Transformer) -> dict:
    """Sizes of the vocabularies, and which tables are one. Where a class has one size for both, the smaller table is
    filled up."""
    tied = model.config.tied_embeddings
    source, target = model.source_embedding.num_embeddings, model.target_embedding.num_embeddings
    if model.config.norm_order == "post":
        return {
            "vocab_size": source,
            "decoder_vocab_size": target,
            "share_encoder_decoder_embeddings": tied == "all",
            "tie_word_embeddings": tied != "none",
        }
    return {"vocab_size": max(source, target), "tie_word_embeddings": tied == "all"}


def _config(config: ModelConfig, positions: int) -> dict:
    return {
        "d_model": config.d_model,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "max_position_embeddings": positions,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
        "encoder_no_repeat_ngram_size": 0,
    }


def _weights(model: Transformer, config: "PretrainedConfig", forbidden_ids: Sequence[int]) -> dict[str, Tensor]:
    """All weights under their names there, the width in their order."""
    width = torch.arange(config.d_model)
    if model.config.positions == "sinusoidal":
        width = torch.cat([width[0::2], width[1::2]])

    def reads(linear: nn.Linear, parts: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of a map from the model's width, or of the several that it joins."""
        return [*zip(linear.weight[:, width].chunk(parts), linear.bias.chunk(parts), strict=True)]

    def writes(part: nn.Linear | nn.LayerNorm) -> tuple[Tensor, Tensor]:
        """Weight and bias of a map to the model's width, or of a norm."""
        return part.weight[width], part.bias[width]

    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model, side)):
            name = f"model.{side}.layers.{number}"
            norms = ["self_attn_layer_norm", "final_layer_norm"]
            attention = f"{name}.self_attn"
            maps = reads(layer.self_attention.query_key_value, 3)
            parts |= zip((f"{attention}.{each}_proj" for each in "qkv"), maps, strict=True)
            parts[f"{attention}.out_proj"] = writes(layer.self_attention.output)
            if side == "decoder":
                norms.insert(1, "encoder_attn_layer_norm")
                attention, cross = f"{name}.encoder_attn", layer.cross_attention
                maps = reads(cross.query) + reads(cross.key_value, 2)
                parts |= zip((f"{attention}.{each}_proj" for each in "qkv"), maps, strict=True)
                parts[f"{attention}.out_proj"] = writes(cross.output)
            (parts[f"{name}.fc1"],) = reads(layer.feed_forward[0])
            parts[f"{name}.fc2"] = writes(layer.feed_forward[-1])
            for norm, residual in zip(norms, layer.residuals, strict=True):
                parts[f"{name}.{norm}"] = writes(residual.norm)
        if model.config.norm_order == "pre":
            parts[f"model.{side}.layer_norm"] = writes(getattr(model, f"{side}_norm"))
    weights = {f"{name}.weight": weight for name, (weight, _) in parts.items()}
    weights |= {f"{name}.bias": bias for name, (_, bias) in parts.items()}

    source_size, target_size = config.vocab_size, getattr(config, "decoder_vocab_size", config.vocab_size)
    tables = {
        "model.encoder.embed_tokens": (model.source_embedding.weight, source_size),
        "model.decoder.embed_tokens": (model.target_embedding.weight, target_size),
        "lm_head": (model.output_weight, target_size),
    }
    if getattr(config, "share_encoder_decoder_embeddings", True):  # where they are not, Marian has no such table
        tables["model.shared"] = (model.source_embedding.weight, source_size)
    for name, (table, size) in tables.items():
        weights[f"{name}.weight"] = F.pad(table[:, width], (0, 0, 0, size - len(table)))
    nothing = torch.zeros(1, config.max_position_embeddings, config.d_model)
    for side, scheme in (("encoder", model.source_positions), ("decoder", model.target_positions)):
        weights[f"model.{side}.embed_positions.weight"] = scheme.embed(nothing)[0, :, width]
    bias = F.pad(torch.zeros(1, len(model.output_weight)), (0, target_size - len(model.output_weight)), value=FORBIDDEN)
    weights["final_logits_bias"] = bias.index_fill(1, torch.tensor(forbidden_ids), FORBIDDEN)
    return weights


def _write_tokenizer(tokenizers: Tokenizers, positions: int, folder: Path) -> None:
    """SentencePiece's models as they are, and the ids of the pieces. What a user types never becomes a special id."""
    for side, tokenizer in zip(tokenizers._fields, tokenizers, strict=True):
        tokenizer.save(folder / f"{side}.spm")
    vocabularies = {"vocab": tokenizers.source}
    if not tokenizers.joint:
        vocabularies["target_vocab"] = tokenizers.target
    for name, tokenizer in vocabularies.items():
        _write_json(folder / f"{name}.json", {piece: id for id, piece in enumerate(pieces(tokenizer))})
    special = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIAL_PIECES, strict=True))
    settings = {
        "tokenizer_class": "MarianTokenizer",
        **special,
        "separate_vocabs": not tokenizers.joint,
        "model_max_length": positions,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


README = """\
# A translation model for Hugging Face's transformers

    python scripts/translate.py --engine huggingface --model FOLDER      # in Dragoman

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained("FOLDER")
    model = AutoModelForSeq2SeqLM.from_pretrained("FOLDER")
    output = model.generate(**tokenizer(["A sentence."], return_tensors="pt"))
    tokenizer.batch_decode(output, skip_special_tokens=True)

`generation_config.json` holds the search. Dragoman also normalises the text first (`cleaning.unicode_form` in
`config.yaml`) and gives every sentence a limit of its own (`search.max_length_ratio`).
"""
