"""What one trained run costs: time and memory to train, time to translate, parameters.

Wants a process of its own: on a CPU the memory is all that the process ever held at once.
"""

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from pipeline.benchmarks.sweep import require_measurable
from pipeline.benchmarks.throughput import throughput
from pipeline.checkpoint import written_whole
from pipeline.cli import read_configuration
from pipeline.config import TrainerConfig
from pipeline.data.preparation import prepare
from pipeline.inference.translator import Translator
from pipeline.training.fit import say
from pipeline.training.training import multiplies_bf16

WINDOWS, UPDATES = 3, 20
"""Training is timed over so many stretches of so many updates, after one more to warm up; the median counts."""

PASSES = 3
"""Translating is timed over so many passes of the test set, after one more to warm up; the median counts."""


def measure(run: Path) -> dict:
    """A row of figures of the model in a run folder.

    Training is that of ``benchmark.py train`` on the run's first batches, in its precision. Translating takes the whole
    test set with the run's search. Memory is what training takes at most: on a GPU the tensors, on a CPU the process
    with Python and all libraries.

    Raises:
        ValueError, OSError: there is no such run, or its corpus is gone.
    """
    configuration = read_configuration(run / "config.yaml")
    kind = precision(configuration.trainer)
    say(f"{run}: timing training, {1 + WINDOWS} times {UPDATES} updates")
    (training,) = throughput(configuration, ["config"], [kind], [configuration.trainer.compile], [], WINDOWS, UPDATES)
    if "note" in training:
        raise ValueError(f"{run}: {training['note']} in training: lower batching.tokens_per_batch")
    if torch.cuda.is_available():
        memory = {"training_tensors_peak_MiB": training["peak_memory_gb"] * 1e9 / 2**20}
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # of the kernel's answer, in bytes
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        memory = {"training_process_peak_MiB": peak / 2**20}
    translator = Translator.load(run)
    sentences = list(prepare(configuration).test["source"])
    say(f"{run}: timing the translation of {len(sentences)} sentences, {1 + PASSES} times")
    return {
        "hardware": hardware(),
        "precision": kind,
        "training_target_tokens_per_second": training["target_tokens_per_second"],
        "translated_sentences_per_second": len(sentences) / seconds_to_translate(translator, sentences),
        "parameters_millions": sum(weights.numel() for weights in translator.engine.model.parameters()) / 1e6,
        **memory,
    }


def write_measurement(run: Path, path: Path) -> None:
    """Measure, and write the figures as JSON, whole or not at all."""
    figures = measure(run)
    with written_whole(path) as new:
        new.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def precision(config: TrainerConfig) -> str:
    """The precision that training takes here, of those that benchmarks can time."""
    require_measurable(config)
    if config.precision != "auto":
        return config.precision
    return "bf16" if multiplies_bf16(torch.cuda.is_available()) else "32"


def seconds_to_translate(translator: Translator, sentences: list[str]) -> float:
    """The median over passes; each ends when the texts are there, so no device is left at work."""
    times = []
    for _ in range(1 + PASSES):
        start = time.perf_counter()
        translator.translate(sentences)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def hardware() -> str:
    """The device that training takes, by its maker's name where torch knows it."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # from torch 2.11
    return f"{capabilities.get('cpu_name', 'CPU')}, {torch.get_num_threads()} threads"
