"""One normalisation for all text, and named rules that drop training pairs, each counted."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pipeline.data.config import CleaningConfig
from pipeline.data.progress import progress

if TYPE_CHECKING:  # datasets takes a second to import, which translating need not wait for
    from datasets import Dataset

CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]")
"""Control characters that are not white space, byte order marks, and halves of surrogate pairs."""

IGNORABLE = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
IGNORABLE += "\u3164\ufe00-\ufe0f\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"
VISIBLE = re.compile(rf"[^\s{IGNORABLE}]")
"""What is neither white space nor of Unicode's property Default_Ignorable_Code_Point."""

# Joiners stay at a word's end: Malayalam and Sinhala spell with them. So do the tags that end a flag.
ENDS = " \u00ad\u180e\u200b\u200e\u200f\u2060"


def normalise(text: str, unicode_form: str = "NFC") -> str:
    """The text as the model sees it, in training and in translating alike; applying it twice changes nothing.

    Control characters and byte order marks go, every run of white space (line and paragraph separators and
    no-break blanks too) becomes one blank, and blank or zero-width characters go from both ends. A text
    without a visible character is empty.
    """
    text = CONTROLS.sub("", text)
    if unicode_form != "none":
        text = unicodedata.normalize(unicode_form, text)
    text = " ".join(text.split()).strip(ENDS)
    return text if VISIBLE.search(text) else ""


RULES: dict[str, Callable[[str, str, CleaningConfig], bool]] = {
    "empty": lambda source, target, config: not (source and target),
    "too_long": lambda source, target, config: max(len(source), len(target)) > config.max_characters,
    "length_ratio": lambda source, target, config: (
        max(len(source), len(target)) + 10 > config.max_length_ratio * (min(len(source), len(target)) + 10)
    ),
    "identical_sides": lambda source, target, config: config.drop_identical and source == target,
}
"""A name, and when a normalised pair is dropped for it; the first rule that applies counts."""


@dataclass
class Report:
    """How many pairs were dropped for what, each with its first examples."""

    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    with_controls: int = 0
    """Pairs that held control characters, which are removed; the pairs may stay."""

    def drop(self, rule: str, source: str, target: str) -> None:
        self.dropped[rule] += 1
        if self.dropped[rule] <= 3:
            self.examples.setdefault(rule, []).append((source[:200], target[:200]))

    def __str__(self) -> str:
        return ", ".join(f"{count} {rule}" for rule, count in self.dropped.items() if count) or "nothing dropped"


def clean(pairs: Dataset, config: CleaningConfig, report: Report | None = None) -> tuple[Dataset, Report]:
    """Normalise both sides and drop the pairs that break a rule; a row's own ``fault`` comes before the rules."""
    report = report or Report()

    def keep(batch: dict[str, list[str]]) -> dict[str, list[str]]:
        kept = []
        for source, target, fault in zip(batch["source"], batch["target"], batch["fault"], strict=True):
            report.with_controls += any(map(CONTROLS.search, (source, target)))
            source, target = normalise(source, config.unicode_form), normalise(target, config.unicode_form)
            broken = fault or next((name for name, breaks in RULES.items() if breaks(source, target, config)), None)
            if broken:
                report.drop(broken, source, target)
            else:
                kept.append((source, target))
        advance(len(batch["source"]))
        return {"source": [source for source, _ in kept], "target": [target for _, target in kept]}

    with progress("cleaning", len(pairs)) as advance:
        kept = pairs.map(keep, batched=True, remove_columns=pairs.column_names, new_fingerprint=uuid4().hex)
    if report.with_controls:
        warnings.warn(f"control characters removed from {report.with_controls} of {len(pairs)} pairs", stacklevel=2)
    return kept, report
