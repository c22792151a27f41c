"""Why a training pair is dropped: a rule is a name, a sentence, and a test of normalised pairs made of the settings.

A rule that the settings turn off makes no test.
"""

from collections.abc import Callable

from pipeline.data.config import CleaningConfig

Breaks = Callable[[str, str], bool]
"""True for a source and a target that are to be dropped."""


def empty(config: CleaningConfig, source_language: str, target_language: str) -> Breaks:
    """A side has no visible character."""
    return lambda source, target: not (source and target)


def too_short(config: CleaningConfig, source_language: str, target_language: str) -> Breaks | None:
    """A side has fewer than ``min_characters``."""
    least = config.min_characters
    return (lambda source, target: len(source) < least or len(target) < least) if least > 1 else None


def too_long(config: CleaningConfig, source_language: str, target_language: str) -> Breaks:
    """A side has more than ``max_characters``."""
    most = config.max_characters
    return lambda source, target: len(source) > most or len(target) > most


def length_ratio(config: CleaningConfig, source_language: str, target_language: str) -> Breaks:
    """The longer side has more than ``max_length_ratio`` times the other's characters, ten added to both."""
    most = config.max_length_ratio
    return lambda source, target: (
        len(source) + 10 > most * (len(target) + 10) or len(target) + 10 > most * (len(source) + 10)
    )


def identical_sides(config: CleaningConfig, source_language: str, target_language: str) -> Breaks | None:
    """Both sides are the same text."""
    return (lambda source, target: source == target) if config.drop_identical else None


RULES: dict[str, Callable[[CleaningConfig, str, str], Breaks | None]] = {
    rule.__name__: rule for rule in (empty, too_short, too_long, length_ratio, identical_sides)
}
"""In the order in which they are asked; the first one that applies counts."""
