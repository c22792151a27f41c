"""A trained model in the formats of other engines, and the proof that it is the same model there.

A format is a module with ``QUANTIZATIONS``, ``refuse(model_config)`` and ``write(model, tokenizers, configuration,
quantization, folder)``. What it wrote is loaded again and translates; the model itself then says, by forced decoding,
whether the scores are its own. Weights that are cut off or in a wrong place, a forgotten end of sentence, another
formula for positions: each gives other scores. A folder that fails does not appear.
"""

import json
import random
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from models.encoder_decoder import EncoderDecoder
from pipeline.checkpoint import EXPORT, load_model, written_whole
from pipeline.config import Configuration, SearchConfig, require
from pipeline.data.tokenizer import SPECIAL_PIECES, Tokenizers
from pipeline.inference.agreement import Agreement, agreement, score_errors
from pipeline.inference.engine import Engine, Source, TorchEngine
from pipeline.inference.exported import require_as_ours, write_small_files
from pipeline.inference.outputs import require_place
from pipeline.inference.translation import Sentence
from pipeline.inference.vocabulary import Vocabulary

FOREIGN = ("ctranslate2", "huggingface")
"""Formats with an engine of their own."""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "int8_float16": 1, "int8_bfloat16": 1}
"""Of an entry of a matrix."""

SCORE_ERROR = {"float32": 1e-3, "float16": 0.01, "int16": 0.05, "bfloat16": 0.05, "int8": 0.2}
"""What a score, a mean over a translation's tokens, may be off by for the weights' rounding: at most in 32 bits, and on
average in others. int8's is also that of int8_float16 and int8_bfloat16."""

LEAST_CHRF = {"float32": 99.0, "float16": 97.0, "int16": 97.0, "bfloat16": 95.0, "int8": 90.0}
"""Of translations by rounded weights against the model's own. In 32 bits greedy ones are equal but for ties, and a beam
may be stopped in another place."""

LEAST_EQUAL = 0.99
"""Of the lines that a beam search in 32 bits translates; fewer are told of."""


def export(
    path: str,
    format: str,
    quantization: str = "float32",
    output: str = "",
    lines: Sequence[str | Sentence] = (),
    references: Sequence[str] = (),
    search: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write the model of a run, a model folder or a checkpoint in a format, and return the folder, which holds all that
    is needed to translate. ``search`` changes settings that go with it. With ``lines``, compare their translations and
    print how far model and engine agree.

    Raises:
        ValueError, OSError: there is no such model; the format has not what the model is made of, or takes what is not
            installed; the output holds something else; or what was written is not the same model.
    """
    try:
        writer = import_module(f"pipeline.inference.export_{format}")
        load = import_module(f"pipeline.inference.{format}_engine").load if format in FOREIGN else _load_own
    except ModuleNotFoundError as error:
        raise ValueError(f"--format={format} needs {error.name}: pip install 'dragoman[export]'") from error
    require(
        quantization in writer.QUANTIZATIONS,
        f"--quantization={quantization} is nothing that --format={format} has: choose one of "
        f"{', '.join(writer.QUANTIZATIONS)}",
    )
    folder = Path(output or (Path(path) if Path(path).is_dir() else Path(path).parent) / f"{format}-{quantization}")
    require(
        not folder.exists() or (folder / EXPORT).is_file(),
        f"--output={folder} is there, and is no export: name another folder",
    )
    require_place(f"--output={folder}", folder)
    model, tokenizers, configuration, _ = load_model(path)
    configuration = replace(configuration, search=configuration.search.changed(search))
    writer.refuse(configuration.model)
    if format in FOREIGN:
        require_as_ours(configuration.search, configuration, format)
    with written_whole(folder) as new:
        for rounding in dict.fromkeys(["float32", quantization]):  # only in 32 bits a small fault cannot hide in it
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            writer.write(model, tokenizers, configuration, rounding, new)
            write_small_files(new, tokenizers, configuration)
            check_size(new, model, rounding)
            engine, *_ = load(new)
            check_scores(model, engine, configuration.search, tokenizers, rounding)
        (new / EXPORT).write_text(json.dumps({"format": format, "quantization": quantization}) + "\n", encoding="utf-8")
        if lines:
            found = [
                agreement(model, engine, tokenizers, replace(configuration, search=each), lines, references)
                for each in plain_searches(configuration.search)
            ]
            print_agreement(found, folder)
            check_translations(found, quantization)
    return folder


def check_size(folder: Path, model: EncoderDecoder, quantization: str) -> None:
    """:raises ValueError: there are fewer bytes than the weights take."""
    entries = sum(parameter.numel() for parameter in model.parameters())
    size = sum(file.stat().st_size for kind in ("*.bin", "*.safetensors") for file in folder.glob(kind))
    require(
        size >= 0.9 * BYTES[quantization] * entries,
        f"the export has {size} bytes, which cannot be {entries} weights in {quantization}: nothing was written",
    )


def check_scores(
    model: EncoderDecoder, engine: Engine, search: SearchConfig, tokenizers: Tokenizers, quantization: str
) -> None:
    """Translate a few sentences of random pieces.

    Raises:
        ValueError: the engine gives other scores than the model.
    """
    choose = random.Random(1)
    words = range(len(SPECIAL_PIECES), tokenizers.source.vocab_size)
    lengths = sorted({min(length, search.max_source_tokens) for length in (1, 2, 5, 12, 30)}, reverse=True)
    sources = [Source(tuple(choose.choices(words, k=length))) for length in lengths]
    for plain in plain_searches(search):
        found = [best for best, *_ in engine.search(sources, plain)]
        errors = score_errors(model, sources, found, plain, Vocabulary.of(tokenizers.target))
        _check_error(mean(errors), max(errors), quantization)


def plain_searches(search: SearchConfig) -> list[SearchConfig]:
    """Greedy search and beam search with these lengths, and nothing that changes or adds to scores."""
    kept = ("length_penalty", "max_length_ratio", "max_length_extra", "max_source_tokens", "tokens_per_batch")
    plain = SearchConfig(**{name: getattr(search, name) for name in kept})
    return [replace(plain, beam_size=beam_size) for beam_size in dict.fromkeys([1, search.beam_size])]


def check_translations(found: Sequence[Agreement], quantization: str) -> None:
    """Of greedy search, and of any other; warns of an engine that ends its beams much too early.

    Raises:
        ValueError: the engine's translations are not the model's, or other than rounding explains.
    """
    greedy = found[0]
    require(
        quantization != "float32" or greedy.parted == 0,
        f"the export translates {greedy.parted} of {greedy.lines} lines in another way, without a beam and in 32 bits: "
        "nothing was written",
    )
    for each in found:
        _check_error(each.mean_error, each.greatest_error, quantization)
        least = LEAST_CHRF[_rounding(quantization)]
        require(
            each.chrf >= least,
            f"the translations in {quantization} have chrF {each.chrf:.1f} against the model's own, less than {least}: "
            "nothing was written; choose a wider type",
        )
        if quantization == "float32" and each.beam_size > 1 and each.equal < LEAST_EQUAL * each.lines:
            warnings.warn(
                f"with a beam of {each.beam_size} the engine translates {each.lines - each.equal} of {each.lines} "
                "lines in another way: it ends a search before what is better is found, which our own engine does not",
                stacklevel=2,
            )


def _check_error(average: float, greatest: float, quantization: str) -> None:
    error, allowed = greatest if quantization == "float32" else average, SCORE_ERROR[_rounding(quantization)]
    require(
        error <= allowed,  # which is not so for NaN
        f"the export gives scores that are off by {error:.3g}, more than the {allowed} of {quantization}: it is not "
        "the same model, and nothing was written",
    )


def _rounding(quantization: str) -> str:
    """``int8_float16`` rounds as int8 does."""
    return quantization.split("_")[0]


def _load_own(folder: Path) -> tuple[Engine, Tokenizers, Configuration]:
    model, tokenizers, configuration, _ = load_model(folder)
    return TorchEngine(model, vocabulary=Vocabulary.of(tokenizers.target)), tokenizers, configuration


def print_agreement(found: Sequence[Agreement], folder: Path) -> None:
    """As a table; of two numbers in a cell the first is the mean error, or the model's, and the other the greatest, or
    the export's."""
    table = Table(title=f"{folder.name} against its model", box=SIMPLE_HEAD)
    for column in ("beam size", "same lines", "score error", "chrF", "BLEU", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            str(each.beam_size),
            f"{each.equal} of {each.lines}",
            f"{each.mean_error:.0e}, {each.greatest_error:.0e}",
            f"{each.chrf:.2f}",
            ", ".join(f"{bleu:.2f}" for bleu in each.bleu),
            ", ".join(f"{seconds:.1f}" for seconds in each.seconds),
        )
    Console().print(table)
