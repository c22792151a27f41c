"""One normalisation for all text, repairs, and named rules that drop training pairs: everything is counted."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.data.config import CleaningConfig
from pipeline.data.repairs import REPAIRS
from pipeline.data.rules import RULES

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
    plain = text.isprintable()  # no control, no mark, and no white space but blanks: so most texts are
    if not plain:
        text = CONTROLS.sub("", text)
    if unicode_form != "none":
        text = unicodedata.normalize(unicode_form, text)
    if not plain or "  " in text:
        text = " ".join(text.split())
    text = text.strip(ENDS)
    return text if VISIBLE.search(text) else ""


@dataclass
class Report:
    """How many pairs were dropped for what, each with its first examples, and how many were repaired."""

    dropped: Counter[str] = field(default_factory=Counter)
    """Pairs by the rule that dropped them."""

    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """The first pairs that a rule dropped."""

    repaired: Counter[str] = field(default_factory=Counter)
    """Pairs by what was repaired in them; they may have been dropped for something else."""

    with_controls: int = 0
    """Pairs that held control characters, which are removed; the pairs may stay."""

    def drop(self, rule: str, source: str, target: str) -> None:
        self.dropped[rule] += 1
        if self.dropped[rule] <= 3:
            self.examples.setdefault(rule, []).append((source[:200], target[:200]))

    def __iadd__(self, other: Report) -> Report:
        self.dropped += other.dropped
        self.repaired += other.repaired
        self.with_controls += other.with_controls
        for rule, examples in other.examples.items():
            self.examples[rule] = (self.examples.get(rule, []) + examples)[:3]
        return self

    def as_dict(self) -> dict[str, Any]:
        """What JSON can hold."""
        return vars(self) | {"dropped": dict(self.dropped), "repaired": dict(self.repaired)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Report:
        examples = {rule: [tuple(pair) for pair in pairs] for rule, pairs in values["examples"].items()}
        return cls(Counter(values["dropped"]), examples, Counter(values["repaired"]), values["with_controls"])

    def __str__(self) -> str:
        return ", ".join(f"{count} {rule}" for rule, count in self.dropped.items() if count) or "nothing dropped"


class Cleaned(NamedTuple):
    """The pairs that are kept, normalised and repaired."""

    sources: list[str]
    targets: list[str]

    rows: list[int]
    """Where each stood in what was given."""

    report: Report


class Cleaner:
    """``Cleaner(config, "en", "de")(sources, targets, faults)`` repairs, normalises and drops; it can be pickled.

    A row's own fault, a text that is not empty, comes before all rules; the first rule that applies counts.
    """

    def __init__(self, config: CleaningConfig, source_language: str, target_language: str):
        self._settings = config, source_language, target_language
        self._unicode_form = config.unicode_form
        self._repairs = [
            (name, repair, getattr(config, name)) for name, repair in REPAIRS.items() if getattr(config, name) != "keep"
        ]
        tests = {name: rule(config, (source_language, target_language)) for name, rule in RULES.items()}
        self._tests = [(name, breaks) for name, breaks in tests.items() if breaks]

    def __reduce__(self):
        return Cleaner, self._settings

    def __call__(self, sources: Sequence[str], targets: Sequence[str], faults: Iterable[str] | None = None) -> Cleaned:
        cleaned = Cleaned([], [], [], Report())
        form, report = self._unicode_form, cleaned.report
        faults = faults or [""] * len(sources)
        for row, (source, target, broken) in enumerate(zip(sources, targets, faults, strict=True)):
            if self._repairs and not broken:
                source, target, broken = self._repair(source, target, report)
            if not (source.isprintable() and target.isprintable()):
                report.with_controls += any(map(CONTROLS.search, (source, target)))
            source, target = normalise(source, form), normalise(target, form)
            broken = broken or self._broken(source, target)
            if broken:
                report.drop(broken, source, target)
            else:
                cleaned.sources.append(source)
                cleaned.targets.append(target)
                cleaned.rows.append(row)
        return cleaned

    def _repair(self, source: str, target: str, report: Report) -> tuple[str, str, str]:
        """Both sides, mended, and the repair for whose need the pair is to be dropped."""
        for name, repair, then in self._repairs:
            repaired = repair(source), repair(target)
            if repaired != (source, target):
                if then == "drop":
                    return source, target, name
                report.repaired[name] += 1
                source, target = repaired
        return source, target, ""

    def _broken(self, source: str, target: str) -> str:
        """The first rule that the pair breaks."""
        for name, breaks in self._tests:
            if breaks(source, target):
                return name
        return ""
