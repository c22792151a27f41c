"""Files that are written for who asked: whole or not at all, never over what they are made from.

What could keep a file from being written is looked for before any work.
"""

import errno
import gzip
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipeline.config import require

STANDARD_OUTPUT = ("-", "/dev/stdout")

FULL = (errno.ENOSPC, errno.EDQUOT)


def require_output(option: str, path: str, inputs: Iterable[str | Path] = ()) -> None:
    """:raises ValueError: ``path``, where one is given, is one of the inputs or a folder, or cannot be written."""
    named, file = f"--{option}={path}", Path(path).resolve()
    if not path or not (is_new_or_regular(path) or file.is_dir()):
        return  # nothing is written, or to what is there and stays
    require(
        file not in [Path(each).resolve() for each in inputs if each],
        f"{named} is an input itself, which would be lost: name another file",
    )
    require(not file.is_dir(), f"{named} is a folder: name a file in it")
    require_place(named, file)


def require_place(named: str, path: Path) -> None:
    """:raises ValueError: nothing can be made under this name, whether a file or a folder."""
    folder = next(each for each in path.resolve().parents if each.exists())
    require(folder.is_dir(), f"{named}: {folder} is no folder to write into: name another place")
    require(
        os.access(folder, os.W_OK | os.X_OK),
        f"{named}: nothing may be written in {folder}: name another place, or change who may",
    )


@contextmanager
def written(path: str) -> Iterator[TextIO]:
    """A file to write text to, UTF-8 with plain newlines, gzipped if it is named ``.gz``; ``-`` is the standard output.

    A regular file takes its name when it is complete. Devices, pipes and what is open already are written to as they
    are.
    """
    from pipeline.checkpoint import written_whole  # slow to import: not for --help

    text = {"mode": "wt", "encoding": "utf-8", "newline": "\n"}
    opened = gzip.open if path.endswith(".gz") else open
    with disk_named("the standard output" if path in STANDARD_OUTPUT else path, "make room, and start again"):
        if path in STANDARD_OUTPUT:
            require(sys.stdout is not None, "the standard output is closed: name a file with --output")
            yield sys.stdout
        elif not is_new_or_regular(path):
            with opened(path if (descriptor := _descriptor(path)) is None else os.dup(descriptor), **text) as file:
                yield file
        else:
            with written_whole(Path(path).resolve()) as new, opened(new, **text) as file:
                yield file


@contextmanager
def disk_named(path: str | Path, remedy: str) -> Iterator[None]:
    """Of a full disk the system tells neither the file that it has no room for nor what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        raise OSError(error.errno, f"{error.strerror}: {remedy}", str(path)) from error


def is_new_or_regular(path: str) -> bool:
    """Whether it is a file that can appear when it is complete."""
    is_open = path in STANDARD_OUTPUT or _descriptor(path) is not None
    return not is_open and (Path(path).is_file() or not Path(path).exists())


def _descriptor(path: str) -> int | None:
    """The number of what is open already under this name: opened once more, it would be written from its start on."""
    found = re.fullmatch(r"/dev/(stderr)|(?:/dev|/proc/self)/fd/(\d+)", path)
    return found and (2 if found[1] else int(found[2]))
