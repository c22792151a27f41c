"""Models on disk become an engine: ours, for one model or several as one, or that of an export."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import torch

from pipeline.checkpoint import fingerprint, load_model
from pipeline.config import Configuration, require
from pipeline.data.tokenizer import Tokenizers
from pipeline.inference.engine import Engine, EnsembleEngine, TorchEngine, default_device
from pipeline.inference.vocabulary import Vocabulary

COMPUTE_TYPES = {"auto": "default", "32": "float32", "bf16": "bfloat16", "int8": "int8"}
"""Precisions by CTranslate2's names."""

Loaded = tuple[Engine, Tokenizers, Configuration]


def load_engine(paths: Sequence[str | Path], device: str | torch.device | None, precision: str, engine: str) -> Loaded:
    """As ``Translator.load``, with the tokenizers and configuration of the first model.

    Raises:
        ValueError, OSError: as there.
    """
    require(len(paths) > 0, "there is no model: name at least one")
    if engine != "dragoman":
        require(len(paths) == 1, f"engine={engine} translates with one model: name one exported folder")
        return _exported(engine, paths[0], device, precision)
    loaded = [load_model(path) for path in paths]
    first = loaded[0]
    for path, other in zip(paths, loaded, strict=True):
        require(
            fingerprint(other.tokenizers) == fingerprint(first.tokenizers),
            f"{paths[0]} and {path} have different tokenizers and cannot translate as one: train them on the same "
            "prepared data",
        )
    vocabulary = Vocabulary.of(first.tokenizers.target)
    engines = [
        TorchEngine(each.model.to(device or default_device()), precision, vocabulary=vocabulary) for each in loaded
    ]
    return engines[0] if len(engines) == 1 else EnsembleEngine(engines), first.tokenizers, first.configuration


def _exported(engine: str, folder: str | Path, device: str | torch.device | None, precision: str) -> Loaded:
    try:
        module = import_module(f"pipeline.inference.{engine}_engine")
    except ModuleNotFoundError as error:
        raise ValueError(f"engine={engine} needs {error.name}: pip install 'dragoman[export]'") from None
    if engine == "ctranslate2":
        kind = "auto" if device is None else torch.device(device).type
        return module.load(folder, kind, COMPUTE_TYPES[precision])
    require(precision in ("auto", "32"), f"precision={precision}: engine={engine} computes as the export was written")
    return module.load(folder)
