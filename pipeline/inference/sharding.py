"""One job on several devices: processes that hold the model each, and parts of the work that go to whoever is free.

Whatever ends a process ends the job, and the end of the job ends all processes, for they wait at a pipe that closes.
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import Queue
from typing import Any, TypeVar

import torch

from pipeline.config import SearchConfig, require
from pipeline.data.arrivals import read_ahead
from pipeline.inference.engine import default_device
from pipeline.inference.translator import Translator

Part = TypeVar("Part")
Result = TypeVar("Result")
Work = Callable[[Translator, Part], Result]
Load = Callable[..., Translator]
"""Takes a ``device``."""

AHEAD = 2
"""Parts per process that are read before the results of earlier ones are all there."""


class OneDevice:
    """The model in this process."""

    num_devices = 1

    def __init__(self, translator: Translator):
        self.translator = translator
        self.search = translator.search
        """The model's own settings."""

    def map(self, work: Work[Part, Result], parts: Iterable[Part]) -> Iterator[Result]:
        """The results of ``work``, in the order of the parts."""
        return (work(self.translator, part) for part in parts)


class SeveralDevices:
    """The model in other processes; what ``work`` and the parts are is sent to them."""

    def __init__(self, workers: list["Worker"], threads: ThreadPoolExecutor):
        self.search: SearchConfig
        self.search, *_ = [worker.receive() for worker in workers]
        self.threads, self.num_devices = threads, len(workers)
        self.free: Queue[Worker] = Queue()
        for worker in workers:
            self.free.put(worker)

    def map(self, work: Work[Part, Result], parts: Iterable[Part]) -> Iterator[Result]:
        submitted = (self.threads.submit(self._ask, work, part) for part in parts)
        results: Iterator[Future[Result]] = read_ahead(submitted, AHEAD * self.num_devices)
        return (result.result() for result in results)

    def _ask(self, work: Work[Part, Result], part: Part) -> Result:
        worker = self.free.get()
        try:
            return worker.ask(work, part)
        finally:
            self.free.put(worker)


@contextmanager
def on_devices(load: Load, devices: int = 1) -> Iterator[OneDevice | SeveralDevices]:
    """The model on so many devices: GPUs, or on a CPU processes that share its cores; 0 is all GPUs, or one process.

    Raises:
        ValueError: there are not so many GPUs, or cores.
        ValueError, OSError: what ``load`` raises, and on the way what the work raises, or that a process has ended.
    """
    num_gpus = torch.cuda.device_count()
    most = num_gpus or os.cpu_count() or 1
    require(
        0 <= devices <= most,
        f"--devices={devices}: there are {most} {'GPUs' if num_gpus else 'cores'} here: give 0 for all GPUs, or 1 to "
        f"{most}",
    )
    devices = devices or num_gpus or 1
    if devices == 1:
        yield OneDevice(load(device=default_device()))
        return
    threads, workers = ThreadPoolExecutor(devices), []
    try:
        with _interrupts_ignored():
            workers += [Worker(load, number, devices) for number in range(devices)]
        yield SeveralDevices(workers, threads)
    finally:
        for worker in workers:
            worker.end()
        threads.shutdown(cancel_futures=True)


class Worker:
    """A process with a model, as the process that started it sees it."""

    def __init__(self, load: Load, number: int, count: int):
        self.name = f"process {number + 1} of {count}"
        context = get_context("spawn")  # what is forked has no use of CUDA, and may have taken locks with it
        self.connection, its_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(its_end, load, number, count), daemon=True)
        self.process.start()
        its_end.close()

    def ask(self, work: Work[Part, Result], part: Part) -> Result:
        try:
            self.connection.send((work, part))
        except OSError:
            self._has_ended()
        return self.receive()

    def receive(self) -> Any:
        """What the process has found, with its warnings."""
        try:
            result, failure, said = self.connection.recv()
        except (EOFError, OSError):
            self._has_ended()
        for message in said:
            warnings.warn(message, stacklevel=2)  # Python says one that several have said only once
        if failure:
            raise failure
        return result

    def _has_ended(self) -> None:
        self.process.join(5)
        status = self.process.exitcode
        how = f"by {signal.Signals(-status).name}" if status and status < 0 else f"with status {status}"
        raise ValueError(
            f"{self.name} has ended {how}, perhaps for want of memory: give fewer --devices or a smaller "
            "--search.tokens_per_batch"
        )

    def end(self) -> None:
        self.process.kill()
        self.process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C is for whoever started the processes: they are started ignoring it, which they inherit."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, load: Load, number: int, count: int) -> None:
    """A process's life: load the model, and answer until nobody asks."""
    said: list[str] = []
    warnings.showwarning = lambda message, *_: said.append(str(message))

    def tell(result: Any, failure: Exception | None) -> None:
        connection.send((result, failure, said[:]))
        said.clear()

    if torch.cuda.is_available():
        device = torch.device("cuda", number)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
    try:
        translator, failure = _attempt(partial(load, device=device))
        tell(translator and translator.search, failure)
        while True:
            work, part = connection.recv()
            tell(*_attempt(work, translator, part))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit()


def _attempt(find: Callable, *arguments: Any) -> tuple[Any, Exception | None]:
    """What was found, or the mistake of the user's that was; any other ends the process with its traceback."""
    try:
        return find(*arguments), None
    except (ValueError, OSError) as failure:
        return None, failure
