"""A model for programs that others write: plain weights, their names and shapes, and every setting as JSON."""

import copy
import json
from dataclasses import asdict
from pathlib import Path

import torch

from models.config import ModelConfig
from models.encoder_decoder import EncoderDecoder
from pipeline.checkpoint import WEIGHTS, save_model
from pipeline.config import Configuration
from pipeline.data.tokenizer import SPECIAL_PIECES, Tokenizers

QUANTIZATIONS = ("float32", "float16", "bfloat16")


def refuse(model: ModelConfig) -> None:
    """Nothing: every model is made of weights."""


def write(
    model: EncoderDecoder, tokenizers: Tokenizers, configuration: Configuration, quantization: str, folder: Path
) -> None:
    """Write a model folder into an existing one: it loads as any other, and says in JSON and in words what is in it."""
    model = copy.deepcopy(model).to(getattr(torch, quantization))
    save_model(folder, model, tokenizers, configuration, metrics={})
    settings = {
        "model": asdict(configuration.model),
        "vocabulary": {"source": tokenizers.source.vocab_size, "target": tokenizers.target.vocab_size},
        "special_ids": {piece: id for id, piece in enumerate(SPECIAL_PIECES)},
        "unicode_form": configuration.cleaning.unicode_form,
        "search": asdict(configuration.search),
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(README.format(weights=WEIGHTS, names=_names(model)), encoding="utf-8")


def _names(model: EncoderDecoder) -> str:
    """Every weight once; further names of a tied one stand beside its first."""
    shapes: dict[int, str] = {}
    names: dict[int, list[str]] = {}
    for name, tensor in sorted(model.state_dict(keep_vars=True).items()):
        names.setdefault(id(tensor), []).append(f"`{name}`")
        shapes[id(tensor)] = " × ".join(map(str, tensor.shape))
    return "\n".join(f"| {' = '.join(those)} | {shapes[which]} |" for which, those in names.items())


README = """\
# A translation model of Dragoman

- `{weights}`: the weights, listed below. A map's weight is [width written, width read], as torch's are.
- `config.json`: every setting: of the model, of the search, and the ids of pieces that stand for no text.
- `tokenizer.model`, or one each for source and target: SentencePiece. Its input is text of `unicode_form`, with control
  characters removed and white space folded.

The encoder reads the source's pieces and `</s>`; the decoder begins with `<s>` and ends with `</s>`. Embeddings are
multiplied by the root of `d_model`. `query_key_value` and `key_value` are maps one under the other, and so is
`gate_and_value`; the norms of a layer are its `residuals`, in the order of use. Sinusoids are sin, cos, sin, cos ...
over the width. The logits of `<pad>`, `<unk>` and `<s>` are left out before the softmax.

| weight | shape |
| --- | --- |
{names}
"""
