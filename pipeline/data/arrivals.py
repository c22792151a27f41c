"""What is still to come, awaited by a thread, so that nothing that is already there has to wait with it."""

import time
from collections.abc import Iterable, Iterator
from queue import Empty, Queue
from threading import Thread
from typing import NamedTuple, TypeVar

T = TypeVar("T")

PATIENCE = 0.05  # seconds


def read_ahead(items: Iterable[T], count: int) -> Iterator[T]:
    """The items; ``count`` of them are fetched before they are asked for."""
    arriving = _arriving(items, count)
    while not isinstance(item := arriving.get(), _End):
        yield item
    item.tell()


def as_they_arrive(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of what has arrived, ``size`` items at most: full where items come fast, and of one where they are slow.

    The first item of a list waits ``PATIENCE`` for others.
    """
    arriving = _arriving(items, size)
    while True:
        some = [arriving.get()]
        until = time.monotonic() + PATIENCE
        while len(some) < size and not isinstance(some[-1], _End):
            try:
                some.append(arriving.get(timeout=max(0.0, until - time.monotonic())))
            except Empty:
                break
        end = some.pop() if isinstance(some[-1], _End) else None
        if some:
            yield some
        if end:
            return end.tell()


class _End(NamedTuple):
    failure: Exception | None

    def tell(self) -> None:
        if self.failure:
            raise self.failure


def _arriving(items: Iterable[T], room: int) -> Queue:
    """A queue that a thread fills with the items and, in the end, with what ended them."""
    queue: Queue = Queue(room)

    def fill() -> None:
        failure = None
        try:
            for item in items:
                queue.put(item)
        except Exception as error:
            failure = error
        queue.put(_End(failure))

    # A daemon, for it may wait for a line that never comes.
    Thread(target=fill, daemon=True).start()
    return queue
