"""Bibles as eBible has them: a verse a line, the same verse on the same line of every file.

``vref.txt`` beside a file names the verses; its chapters are the groups.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeline.data.config import CorpusConfig
from pipeline.data.lines import read_aligned

RANGE = "<range>"
"""Stands for a verse whose text is in the line of the verse before."""

Row = tuple[str, str, str, str]


def verse_line_pairs(corpus: CorpusConfig, names: list[str]) -> Iterator[Row]:
    """Couples of files. Verses that are not there, or not for themselves, are marked as faults."""
    for source, target in zip(names[::2], names[1::2], strict=True):
        run: list[Row] = []
        for row in _rows(corpus, source, target):
            if RANGE not in row[:2]:
                yield from _without_first_of_range(run)
                run = []
            run.append(row)
        yield from _without_first_of_range(run)


def _rows(corpus: CorpusConfig, source: str, target: str) -> Iterator[Row]:
    references = reference_files([source, target])
    for first, second, *reference in read_aligned([source, target, *references], corpus.encodings):
        first, second = first.strip(), second.strip()
        fault = ""
        if RANGE in (first, second):
            fault = "verse_in_range"
        elif not first and not second:
            fault = "verse_missing"
        elif not first or not second:
            fault = "verse_on_one_side"
        yield first, second, reference[0].partition(":")[0] if reference else "", fault


def _without_first_of_range(run: list[Row]) -> list[Row]:
    """The first of a run holds the verses of those after it, too: it is no pair unless it does so on both sides."""
    if any((source == RANGE) != (target == RANGE) for source, target, _, _ in run):
        run[0] = (*run[0][:3], "verse_in_range")
    return run


def reference_files(names: list[str]) -> list[str]:
    """The ``vref.txt`` beside the first of the files that has one."""
    beside = (Path(name).with_name("vref.txt") for name in names)
    return [str(path) for path in beside if path.is_file()][:1]
