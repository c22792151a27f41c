"""A model as CTranslate2 runs it: its layers and weights under that engine's names, nothing retrained or re-tokenised.

What our search does and the engine does not is put into the weights, so that a plain ``translate_batch`` finds the
same: pieces that stand for no text are forbidden by the output's bias, and so leave the softmax; and what the engine
computes by another formula, sinusoids and ALiBi's distances, is written out as tables.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from models.config import ModelConfig
from models.positions import Alibi
from models.transformer import Transformer
from pipeline.config import Configuration, require
from pipeline.data.tokenizer import Tokenizers
from pipeline.inference.exported import FORBIDDEN, num_positions, pieces
from pipeline.inference.vocabulary import Vocabulary

if TYPE_CHECKING:
    from ctranslate2.specs import LayerSpec, TransformerSpec

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16", "int16")
"""Types of the matrices on disk. With int8 and int16 vectors stay in 32 bits, unless a second type is named for them.
"""


def refuse(model: ModelConfig) -> None:
    """:raises ValueError: the model has a mechanism that the engine has not."""
    has = {"architecture": "transformer", "attention": "dot_product", "attention_window": 0}
    for name, value in has.items():
        require(
            getattr(model, name) == value,
            f"model.{name}={getattr(model, name)} is nothing CTranslate2 can run: it takes models trained with "
            f"model.{name}={value}",
        )


def write(
    model: Transformer, tokenizers: Tokenizers, configuration: Configuration, quantization: str, folder: Path
) -> None:
    """Write the engine's files into an existing folder; the model is one that ``refuse`` lets pass."""
    spec = described(model, num_positions(configuration), Vocabulary.of(tokenizers.target).forbidden_ids)
    spec.register_source_vocabulary(pieces(tokenizers.source))
    spec.register_target_vocabulary(pieces(tokenizers.target))
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))
    (folder / "README.md").write_text(README.format(search=configuration.search), encoding="utf-8")


def described(model: Transformer, positions: int | None, forbidden_ids: Sequence[int]) -> "TransformerSpec":
    """The engine's description of the model, with its weights."""
    spec = _nothing_yet(model.config)
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = model.encoder[0].residuals[0].norm.eps
    encoder, decoder = spec.encoder, spec.decoder
    encoder.embeddings[0].weight = _copied(model.source_embedding.weight)
    decoder.embeddings.weight = _copied(model.target_embedding.weight)
    decoder.projection.weight = _copied(model.output_weight)
    decoder.projection.bias = torch.zeros(len(model.output_weight))
    decoder.projection.bias[list(forbidden_ids)] = FORBIDDEN
    for layer_spec, layer in zip(chain(encoder.layer, decoder.layer), chain(model.encoder, model.decoder), strict=True):
        _describe_layer(layer_spec, layer)
    if model.config.norm_order == "pre":
        _describe_norm(encoder.layer_norm, model.encoder_norm)
        _describe_norm(decoder.layer_norm, model.decoder_norm)
    if positions and model.config.positions != "alibi":
        nothing = torch.zeros(1, positions, model.config.d_model)
        for side, scheme in ((encoder, model.source_positions), (decoder, model.target_positions)):
            side.position_encodings.encodings = _copied(scheme.embed(nothing)[0])
    if positions and model.config.positions == "alibi":
        _describe_alibi(spec, model.encoder[0].self_attention.positions, positions)
    return spec


def _nothing_yet(config: ModelConfig) -> "TransformerSpec":
    from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
    from ctranslate2.specs.common_spec import Activation

    options = {
        "num_heads": config.num_heads,
        "num_heads_kv": config.num_key_value_heads or None,
        "pre_norm": config.norm_order == "pre",
        "rms_norm": config.norm == "rms",
        "activation": {"relu": Activation.RELU, "gelu": Activation.GELU, "swiglu": Activation.SWISH}[config.activation],
        "ffn_glu": config.activation == "swiglu",
        # None at all are relative ones that say nothing: of any length, unlike a table of absolute ones.
        "relative_position": config.positions in ("shaw", "none"),
        "relative_attention_bias": config.positions == "alibi",
        "rotary_dim": 0 if config.positions == "rotary" else None,  # 0 is the whole head
    }
    return TransformerSpec(
        TransformerEncoderSpec(config.encoder_layers, **options),
        TransformerDecoderSpec(config.decoder_layers, **options),
    )


def _describe_layer(spec: "LayerSpec", layer: nn.Module) -> None:
    """Of the encoder or the decoder."""
    itself = layer.self_attention
    maps = [*zip(spec.self_attention.linear, (itself.query_key_value, itself.output), strict=True)]
    norms = [spec.self_attention.layer_norm, spec.ffn.layer_norm]
    if hasattr(layer, "cross_attention"):
        cross = layer.cross_attention
        maps += zip(spec.attention.linear, (cross.query, cross.key_value, cross.output), strict=True)
        norms.insert(1, spec.attention.layer_norm)
    if hasattr(spec.self_attention, "relative_position_keys"):
        nothing = torch.zeros(1, itself.head_width)
        spec.self_attention.relative_position_keys = _copied(getattr(itself.attend, "keys", nothing))
        spec.self_attention.relative_position_values = _copied(getattr(itself.attend, "values", nothing))

    network = layer.feed_forward
    if hasattr(spec.ffn, "linear_0_noact"):
        for name in ("weight", "bias"):
            gate, value = getattr(network.gate_and_value, name).chunk(2)
            setattr(spec.ffn.linear_0, name, _copied(gate))
            setattr(spec.ffn.linear_0_noact, name, _copied(value))
        maps.append((spec.ffn.linear_1, network.output))
    else:
        maps += [(spec.ffn.linear_0, network[0]), (spec.ffn.linear_1, network[-1])]

    for map_spec, linear in maps:
        map_spec.weight, map_spec.bias = _copied(linear.weight), _copied(linear.bias)
    for norm_spec, residual in zip(norms, layer.residuals, strict=True):
        _describe_norm(norm_spec, residual.norm)


def _describe_norm(spec: "LayerSpec", norm: nn.Module) -> None:
    spec.gamma = _copied(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _copied(norm.bias)


def _describe_alibi(spec: "TransformerSpec", scheme: Alibi, positions: int) -> None:
    """As T5's table of biases, in which half of each side's buckets are one distance each (Raffel et al., 2020). An
    encoder's first half is for keys before the query, its second for those after it."""
    distances = torch.arange(2 * positions).clamp(max=positions)  # the half that is never reached goes on somehow
    bias = -scheme.slopes(torch.zeros(())) * distances[:, None]  # [2 positions, H]
    for side, table in ((spec.encoder, torch.cat([bias, bias])), (spec.decoder, bias)):
        for layer in side.layer:
            layer.self_attention.relative_attention_bias = _copied(table)
            layer.self_attention.relative_attention_max_distance = np.int32(positions + 1)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().float().clone()  # the engine quantises in place


README = """\
# A translation model for CTranslate2

    python scripts/translate.py --engine ctranslate2 --model FOLDER      # in Dragoman

    import ctranslate2, sentencepiece
    tokenizer = sentencepiece.SentencePieceProcessor("FOLDER/tokenizer.model")
    translator = ctranslate2.Translator("FOLDER")
    pieces = tokenizer.encode("A sentence.", out_type=str)
    (result,) = translator.translate_batch(
        [pieces], beam_size={search.beam_size}, length_penalty={search.length_penalty}, max_input_length=0,
        max_decoding_length=int({search.max_length_ratio} * len(pieces) + {search.max_length_extra}),
        min_decoding_length=0,
    )
    tokenizer.decode(result.hypotheses[0])

The engine itself ends the source with `</s>` and begins the target with `<s>`; nothing else is to be added. Pieces that
stand for no text are never produced. Dragoman also normalises the text first (`cleaning.unicode_form` in `config.yaml`)
and lets a beam search run a little longer (patience=1.2). With two vocabularies the tokenizer of the source is
`tokenizer.source.model`.
"""
