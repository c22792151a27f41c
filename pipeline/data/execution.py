"""Pieces of work done in this process, in others, or on the machines of a Dask cluster, each once.

A piece is a function from files to a file, which appears when all of it is done: a piece whose file is there is not
done again, whoever did it and whenever.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.data.config import PreparationConfig

PATIENCE = 10.0
"""Seconds to wait for a scheduler, and before asking after its workers."""

AHEAD = 2
"""Pieces for each worker that wait or are being done."""


class Piece(NamedTuple):
    """``function(*arguments, output)`` writes the file ``output``, whole or not at all."""

    function: Callable[..., Any]
    arguments: tuple
    output: Path

    pairs: int
    """How much it is, for the progress."""

    def do(self) -> None:
        self.function(*self.arguments, self.output)


class Workers:
    """Those who do the work; use it in a ``with`` statement. Nobody is called before there are two pieces at once."""

    def __init__(self, config: PreparationConfig):
        self.config = config
        self.count = config.workers or available_cores()
        self._stack = contextlib.ExitStack()
        self._executor: Executor | None = None
        self._client: Any = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def do(self, pieces: Iterable[Piece], advance: Callable[[int], None] = lambda count: None) -> list[Path]:
        """The pieces' files, in order, when all are there. Pieces are asked for no faster than they are done.

        Raises:
            ValueError, OSError: a piece failed, or a worker or the cluster was lost.
        """
        pieces = iter(pieces)
        first = list(islice(pieces, 2))
        alone = len(first) < 2 or (self.count == 1 and not self.config.scheduler)
        outputs, running = [], {}

        def await_some() -> None:
            while not (done := wait(running, PATIENCE, FIRST_COMPLETED).done):
                self._require_machines()
            for future in done:
                future.result()
                advance(running.pop(future))

        for piece in chain(first, pieces):
            outputs.append(piece.output)
            if piece.output.exists():
                advance(piece.pairs)
            elif alone:
                piece.do()
                advance(piece.pairs)
            else:
                with self._losses_told():
                    running[self._call().submit(piece.do)] = piece.pairs
                    if len(running) >= AHEAD * self.count:
                        await_some()
        with self._losses_told():
            while running:
                await_some()
        return outputs

    @contextlib.contextmanager
    def _losses_told(self) -> Iterator[None]:
        """What went wrong with those who do the work, rather than with the work, is one line with a remedy."""
        try:
            yield
        except (ValueError, OSError):
            raise
        except BrokenProcessPool:
            raise ValueError(
                f"one of preparation.workers={self.count} processes was killed (out of memory?): lower it, and "
                f"what is done is kept, or begin anew with a lower preparation.shard_pairs={self.config.shard_pairs}"
            ) from None
        except Exception as error:
            if self._client is None:
                raise
            raise ValueError(
                f"preparation.scheduler={self.config.scheduler}: {_in_one_line(error)}: its workers need memory, this "
                "version of Dragoman and of its packages, and the same paths; start it again, what is done is kept"
            ) from error

    def _call(self) -> Executor:
        if self._executor is None and self.config.scheduler:
            self._executor = self._cluster()
        elif self._executor is None:
            # Started afresh rather than forked: this process may have threads, of torch or of a bar.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self.count, context, end_with_parent)
            self._stack.callback(self._executor.shutdown, cancel_futures=True)
        return self._executor

    def _cluster(self) -> Executor:
        try:
            from distributed import Client
        except ImportError:
            raise ValueError("preparation.scheduler needs distributed: pip install 'dragoman[dask]'") from None
        try:
            self._client = Client(self.config.scheduler, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"preparation.scheduler={self.config.scheduler} cannot be reached: {_in_one_line(error)}"
            ) from None
        self._stack.callback(self._client.close)
        self._require_machines()
        self.count = sum(self._client.nthreads().values())
        return self._client.get_executor(pure=False)

    def _require_machines(self) -> None:
        """A scheduler without workers waits for some, for ever."""
        if self._client is not None and not self._client.nthreads():
            raise ValueError(
                f"preparation.scheduler={self.config.scheduler} has no workers: start some with dask worker "
                f"{self.config.scheduler}; what is done is kept"
            )


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def end_with_parent() -> None:
    """In a worker: stop when the process that asked for it is gone, even if that was killed; leave ^C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
