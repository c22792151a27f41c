"""How fast a corpus is prepared, stage by stage, and in how much memory: on made-up pairs that look like real ones."""

import dataclasses
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

from pipeline.config import Configuration
from pipeline.data.config import CorporaConfig
from pipeline.data.encoding import encode, learn
from pipeline.data.execution import Workers
from pipeline.data.stages import Stages

WORDS = 50_000
"""The made-up language; the r-th most frequent word stands in a text with a frequency of 1 / r."""

SHARES = {"duplicate": 0.05, "identical": 0.01, "long": 0.01}
"""Of pairs that cleaning has something to do with."""


def preparation(configuration: Configuration, pairs: int) -> list[dict]:
    """A row for each stage: seconds, pairs of the corpus per second, and the peak memory of processes up to then."""
    rows = []

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        rows.append({"stage": stage, "seconds": seconds, "pairs_per_second": pairs / seconds} | _memory())

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_corpus(folder, pairs)
        corpora = CorporaConfig(train=files)
        with Workers(configuration.preparation) as workers:
            configuration = dataclasses.replace(configuration, corpora=corpora)
            stages = Stages(configuration, folder, workers)
            begun = time.perf_counter()
            with timed("read and clean"):
                held_out = stages.read_held_out()
                stages.read_and_clean()
            with timed("compare and hold out"):
                stages.decide(held_out)
                held_out = {name: stages.hold_out(name) for name in ("valid", "test")}
            with timed("compare with held-out data"):
                stages.find_near_overlap(held_out)
                text = stages.text(held_out)
            with timed("learn a vocabulary"):
                tokenizers, _ = learn(text, configuration, folder)
            with timed("encode"):
                encode(text, tokenizers, configuration, folder, workers)
            seconds = time.perf_counter() - begun
    return [*rows, {"stage": "all", "seconds": seconds, "pairs_per_second": pairs / seconds} | _memory()]


def write_corpus(folder: Path, pairs: int) -> list[str]:
    """Two line-aligned files of 5 to 35 words a line."""
    draw = random.Random(0)
    sides = [list(_words(draw, letters)) for letters in ("etaoinshrdlucmfwypvbgk", "enisratdhulcgmobwfkzäöüß")]
    weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))
    before = ()
    files = [folder / "made-up.en", folder / "made-up.de"]
    with open(files[0], "w", encoding="utf-8") as sources, open(files[1], "w", encoding="utf-8") as targets:
        for _ in range(pairs):
            chance = draw.random()
            if not before or chance > SHARES["duplicate"]:
                length = draw.randint(5, 35) * (20 if chance > 1 - SHARES["long"] else 1)
                ranks = draw.choices(range(WORDS), cum_weights=weights, k=length)
                before = tuple(" ".join([words[rank] for rank in ranks]).capitalize() + "." for words in sides)
            source, target = before
            if chance > 1 - SHARES["long"] - SHARES["identical"]:
                target = source
            sources.write(f"{source}\n")
            targets.write(f"{target}\n")
    return [str(file) for file in files]


def _words(draw: random.Random, letters: str) -> Iterator[str]:
    """Frequent words are short."""
    for rank in range(WORDS):
        length = 1 + len(str(rank)) + draw.randint(0, 4)
        yield "".join(draw.choices(letters, range(len(letters), 0, -1), k=length))


def _memory() -> dict[str, float]:
    unit = 1 if sys.platform == "darwin" else 1024  # of the kernel's answer, in bytes
    peaks = (
        resource.getrusage(who).ru_maxrss * unit / 2**20 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return dict(zip(("process_peak_MiB", "largest_worker_peak_MiB"), peaks, strict=True))
