"""What the work may do to those who do it; a module of its own, as they import it."""

import os
import signal
import time
from importlib import import_module
from pathlib import Path


def die(output: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(output: Path) -> None:
    raise ValueError(f"{output} cannot be written: name another")


def sleep(output: Path) -> None:
    time.sleep(0.2)


class Unknown:
    """What another version of the program does not have."""

    def __reduce__(self):
        return import_module, ("pipeline.unknown",)
