"""Training on what the disk has no room for: corpora are read over and over, a window of pairs at a time.

A window is cleaned, compared with valid and test, and encoded by the stages that prepare a corpus, in a process of its
own, while the one before is trained on; then that is deleted. What it holds is a function of where it begins: neither
ranks nor interruptions change it.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import filelock
import pyarrow.compute as pc

from pipeline.config import Configuration
from pipeline.data.arrow import map_arrow
from pipeline.data.config import BatchingConfig, CorpusConfig
from pipeline.data.corpora import Shard, read_pairs, write_rows
from pipeline.data.encoding import piece
from pipeline.data.execution import Workers, end_with_parent
from pipeline.data.shards import read_json, write_json
from pipeline.data.stages import HELD_OUT, HeldOut, RawShards, Stages
from pipeline.data.text import SIDES, encoded_shard

PATIENCE = 0.05
"""Seconds between two looks for a window that another process makes."""

LONGEST_END = 10.0
"""Seconds that what is being done of a window may take to come to an end."""


class Place(NamedTuple):
    """Where a corpus is read next."""

    passes: int = 0
    """How often it has been read to its end."""

    row: int = 0


class Window(NamedTuple):
    """Pairs for training that lie on the disk."""

    shards: list[Path]
    """Encoded, as those of a prepared corpus."""

    read: int
    """Pairs of the corpora that it was made of."""

    seconds: float
    """The time that took."""

    end: list[Place]
    """Where the next one begins, for each corpus."""


class Stream:
    """The windows, as each process of a training sees them; of those of a machine, one has them made.

    Raises:
        ValueError, OSError: as ``preparation.prepare`` does, when a window is opened.
    """

    def __init__(self, configuration: Configuration):
        self.configuration = configuration
        self.process: multiprocessing.process.BaseProcess | None = None
        self.making: int | None = None
        """The window that was asked for last."""

    def start(self, least: int, node: int, makes: bool) -> None:
        """Begin anew with an empty folder; all processes are to do so before any opens a window.

        Args:
            least: pairs that a window is to have
            node: number of the machine
            makes: whether it is this process that has the windows made
        """
        run = Path(self.configuration.output.run)
        self.folder, self.lock = run / f"stream-{node}", filelock.FileLock(run / f".stream-{node}.lock")
        if not makes:
            return
        run.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(timeout=0)
        except filelock.Timeout:  # processes of a training that was killed may take some seconds to end
            print(f"waiting for another process that makes windows in {self.folder}", file=sys.stderr)
            self.lock.acquire()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        context = multiprocessing.get_context("spawn")
        self.connection, other_end = context.Pipe()
        self.process = context.Process(target=_make_windows, args=(self.configuration, self.folder, least, other_end))
        self.process.start()
        other_end.close()  # or else its death would go unnoticed

    def open(self, number: int, begin: list[Place]) -> Window:
        """The window of that number, which begins there. Those before it are deleted, and the next one is begun."""
        path = _path(self.folder, number)
        if self.process:
            with self._loss_told():
                if self.making != number:
                    self._make(number, begin)
                failure = self.connection.recv()
            if failure:
                raise failure
        while not (path / "window.json").exists():
            time.sleep(PATIENCE)
        described = read_json(path / "window.json")
        end = [Place(*place) for place in described.pop("end")]
        window = Window(sorted(path.glob("train-*.arrow")), end=end, **described)
        if self.process:
            for old in self.folder.iterdir():
                if old.name < path.name:
                    shutil.rmtree(old)
            with self._loss_told():
                self._make(number + 1, window.end)
        return window

    def close(self) -> None:
        """End the work, and leave nothing behind."""
        if self.process:
            self.process.terminate()
            self.process.join(LONGEST_END)
            self.process.kill()
            self.process.join()
            self.connection.close()
            self.process = None
            shutil.rmtree(self.folder)
            self.lock.release()

    def _make(self, number: int, begin: list[Place]) -> None:
        self.making = number
        self.connection.send((number, begin))

    @contextlib.contextmanager
    def _loss_told(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            raise ValueError(
                f"the process that reads corpora.stream_window={self.configuration.corpora.stream_window} pairs at a "
                "time was killed (out of memory?): lower that, or preparation.workers; the same command goes on"
            ) from None


def _make_windows(configuration: Configuration, folder: Path, least: int, connection: Connection) -> None:
    """In a process of its own: make each window that is asked for, and tell whether that went wrong."""
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # its own processes are to be ended in order
    with open(os.devnull, "w") as nowhere, Workers(configuration.preparation) as workers:
        sys.stderr = nowhere  # what preparing tells of its progress would break into what training tells
        maker = WindowMaker(configuration, folder, least, workers)
        with contextlib.suppress(EOFError):
            while True:
                number, begin = connection.recv()
                try:
                    maker.make(number, begin)
                    connection.send(None)
                except Exception as error:
                    connection.send(error)


class WindowMaker:
    """``make(0, begin)``, ``make(1, ...)``, … write windows into a folder; each goes on reading where the last did."""

    def __init__(self, configuration: Configuration, folder: Path, least: int, workers: Workers):
        self.folder, self.least, self.workers = folder, least, workers
        self.batching, self.corpora = configuration.batching, configuration.corpora
        self.prepared = Path(configuration.output.data)
        self.held_out = _held_out(self.prepared)
        # Held-out pairs that come by again must go, and no others are to be held out.
        self.configuration = dataclasses.replace(
            configuration,
            corpora=dataclasses.replace(self.corpora, valid_size=0, test_size=0),
            cleaning=dataclasses.replace(
                configuration.cleaning,
                drop_overlap=configuration.cleaning.drop_overlap or self.corpora.holds_out,
            ),
        )
        self.readers: list[EndlessReader] = []

    def make(self, number: int, begin: list[Place]) -> None:
        """Write a window, whole or not at all."""
        started = time.monotonic()
        if [reader.place for reader in self.readers] != begin:
            self.readers = [EndlessReader(*each) for each in zip(self.corpora.each, begin, strict=True)]
        new = self.folder / f"{_path(self.folder, number).name}.new"
        new.mkdir()
        shards: list[Path] = []
        pairs = read = 0
        while pairs < self.least:
            if min(reader.place.passes for reader in self.readers) > 1 + max(place.passes for place in begin):
                raise ValueError(
                    f"{pairs} of {read} pairs left for a window, less than {self.least} batches per update: raise "
                    f"corpora.stream_window={self.corpora.stream_window}, or relax cleaning or batching"
                )
            left = self.corpora.shares
            read += sum(left)
            while any(left):
                for encoded in self.encode(self.read(left, new), new, len(shards)):
                    pairs += num_trainable(encoded, self.batching)
                    shards.append(encoded)
                shutil.rmtree(new / "work")
        end = [reader.place for reader in self.readers]
        write_json({"read": read, "seconds": time.monotonic() - started, "end": end}, new / "window.json")
        new.rename(_path(self.folder, number))

    def read(self, left: list[int], folder: Path) -> RawShards:
        """What is left of each corpus's share of a window, to the corpus's end at most: so no row comes twice, and what
        does is a duplicate."""
        most = self.configuration.preparation.shard_pairs
        for number, reader in enumerate(self.readers):
            passes = reader.place.passes
            while left[number] and reader.place.passes == passes:
                path = folder / "work" / f"{number}-{left[number]}.arrow"
                rows = reader.write(path, min(left[number], most))
                left[number] -= rows
                yield number, Shard(path, rows)

    def encode(self, raw: RawShards, folder: Path, first: int) -> list[Path]:
        """Shards of what is to be trained on of some raw ones."""
        work = folder / "work"
        stages = Stages(self.configuration, work, self.workers)
        stages.clean(raw)
        stages.decide(self.held_out)
        stages.find_near_overlap(self.held_out)
        kept = stages.kept()
        encoded = [encoded_shard(folder, "train", first + number) for number in range(len(kept))]
        self.workers.do(
            piece(shard, self.configuration, self.prepared, path, work)
            for shard, path in zip(kept, encoded, strict=True)
        )
        return encoded


class EndlessReader:
    """The training data of a corpus, over and over."""

    def __init__(self, corpus: CorpusConfig, place: Place):
        self.corpus = corpus
        self._open(place)

    def write(self, path: Path, most: int) -> int:
        """Write the next rows of this pass as a raw shard, at most so many and at least one; how many they are."""
        rows = write_rows(path, islice(chain([self.next_row], self.rows), most))
        self.place = Place(self.place.passes, self.place.row + rows)
        self.next_row = next(self.rows, None)
        if self.next_row is None:
            self._open(Place(self.place.passes + 1))
        return rows

    def _open(self, place: Place) -> None:
        self.place, self.rows = place, iter(read_pairs(self.corpus, self.corpus.train, place.row))
        self.next_row = next(self.rows, None)
        if self.next_row is None:
            raise ValueError(f"corpora.train={self.corpus.train} has become shorter than {place.row} pairs")


def num_trainable(encoded: Path, batching: BatchingConfig) -> int:
    """Pairs that are within the limits of batches."""
    table = map_arrow(encoded)
    source, target = (pc.list_value_length(table[f"{side}_ids"]) for side in SIDES)
    within = pc.and_(
        pc.less_equal(source, batching.max_source_tokens), pc.less_equal(target, batching.max_target_tokens)
    )
    return pc.sum(within).as_py() or 0


def _held_out(prepared: Path) -> HeldOut:
    """The splits of a prepared folder that have any pairs."""
    shards = {
        name: [Shard(path, len(map_arrow(path))) for path in prepared.glob(f"{name}-*.arrow")] for name in HELD_OUT
    }
    return {
        name: [(0, shard) for shard in of_split] for name, of_split in shards.items() if any(s.rows for s in of_split)
    }


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06}"
