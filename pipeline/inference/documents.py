"""Text around the model: files that appear whole on its way out."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pipeline.checkpoint import written_whole
from pipeline.data.progress import progress

if TYPE_CHECKING:
    from pipeline.inference.translator import Translation


def write(translations: Iterable[list["Translation"]], path: str, table: bool) -> None:
    """Write the best translation of each sentence as a line, or all of them as rows of a table: the sentence's number
    from 1, the score, ``end`` or ``limit`` (what stopped it) and the text, separated by tabs."""
    with written(path) as file, progress("translating") as advance:
        for number, found in enumerate(translations, 1):
            for text, score, finished in found if table else found[:1]:
                row = f"{number}\t{score:.4f}\t{'end' if finished else 'limit'}\t{text}" if table else text
                print(row, file=file, flush=True)
            advance(1)


@contextmanager
def written(path: str) -> Iterator[TextIO]:
    """A file to write text to, UTF-8 with plain newlines; ``-`` is the standard output.

    A regular file takes its name when it is complete. Devices and pipes are written to as they are.
    """
    text = {"mode": "w", "encoding": "utf-8", "newline": "\n"}
    if path == "-":
        yield sys.stdout
    elif Path(path).exists() and not Path(path).is_file():
        with open(path, **text) as file:
            yield file
    else:
        with written_whole(Path(path).resolve()) as new, open(new, **text) as file:
            yield file
