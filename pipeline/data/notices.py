"""Warnings that are issued as ever, and kept for the report."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """``with warnings_kept() as kept: ...``; afterwards ``kept`` has the sentences."""
    kept: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield kept
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    kept += [str(warning.message) for warning in caught if warning.category is UserWarning]
