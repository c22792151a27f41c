"""Train, valid and test without leaks: copies of a pair never lie on both sides of a split.

Rows are compared by 64-bit hashes. As the order of hashes is as good as a shuffle, and depends on the text alone,
it also decides what is held out: the same corpus always gives the same splits.
"""

import warnings
from hashlib import blake2b
from typing import NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
from datasets import Dataset

from pipeline.data.cleaning import Report, normalise
from pipeline.data.config import CleaningConfig, CorporaConfig
from pipeline.data.corpora import COLUMNS
from pipeline.data.progress import progress

FINAL_MARKS = " .,;:!?…。，、；：！？।॥،؛؟"


class Keys(NamedTuple):
    """Hashes [rows] of what is compared; 0 for an empty text."""

    pair: np.ndarray
    """Both sides, normalised."""

    group: np.ndarray
    """The row's group, or else both sides folded: what must stay in one split."""

    source: np.ndarray
    """The folded source."""

    target: np.ndarray
    """The folded target."""

    usable: np.ndarray
    """True where neither side is empty and the row has no fault."""


class Splits(NamedTuple):
    train: Dataset
    valid: Dataset
    test: Dataset


def fold(text: str) -> str:
    """A normalised text without case and final marks, unless nothing else is left."""
    text = text.casefold()
    return text.rstrip(FINAL_MARKS) or text


def compute_keys(pairs: Dataset, unicode_form: str) -> Keys:
    hashes, usable = [], []
    with progress("comparing", len(pairs)) as advance:
        for batch in pairs.iter(1000):
            columns = (batch[column] for column in COLUMNS)
            for source, target, group, fault in zip(*columns, strict=True):
                source, target = normalise(source, unicode_form), normalise(target, unicode_form)
                folded = fold(source), fold(target)
                hashes += map(_hash, (f"{source}\0{target}", group or "\0".join(folded), *folded))
                usable.append(not fault and source != "" and target != "")
            advance(len(batch["source"]))
    return Keys(*np.frombuffer(b"".join(hashes), dtype=np.uint64).reshape(-1, 4).T, np.array(usable, dtype=bool))


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest() if text else bytes(8)


def split(pairs: dict[str, Dataset], corpora: CorporaConfig, cleaning: CleaningConfig) -> tuple[Splits, Report]:
    """Valid and test as named, every row untouched, or else held out of the training data; then training data
    without duplicates and without overlap with either. All text stays as it was read.

    Whole groups are held out, as many as come nearest to the size asked for; never pairs with a fault or an empty
    side, which are left for cleaning to count.
    """
    report = Report()
    train = pairs["train"]
    keys = compute_keys(train, cleaning.unicode_form)
    usable = keys.usable.copy()
    unwanted = {}
    if cleaning.drop_duplicates:
        unwanted["duplicate"] = usable & ~_first_copies(keys.pair)
        usable &= ~unwanted["duplicate"]

    sizes = {name: getattr(corpora, f"{name}_size") for name in ("valid", "test") if name not in pairs}
    if sum(sizes.values()) > usable.sum() / 2:
        tenth = int(usable.sum()) // 10
        asked = " and ".join(f"corpora.{name}_size={size}" for name, size in sizes.items())
        warnings.warn(f"{asked} would leave too little of {len(train)} pairs: {tenth} held out each", stacklevel=2)
        sizes = dict.fromkeys(sizes, tenth)
    held_out = dict(zip(sizes, hold_out(keys.group, usable, list(sizes.values())), strict=True))
    others = {name: train.select(np.flatnonzero(rows)) for name, rows in held_out.items()} | {
        name: rows for name, rows in pairs.items() if name != "train"
    }
    remaining = ~np.logical_or.reduce([np.zeros(len(train), dtype=bool), *held_out.values()])

    if cleaning.drop_overlap:
        seen = [compute_keys(rows, cleaning.unicode_form) for rows in others.values()]
        overlap = np.zeros(len(train), dtype=bool)
        for side in ("source", "target"):
            texts = np.unique(np.concatenate([getattr(other, side) for other in seen]))
            overlap |= np.isin(getattr(keys, side), texts[texts != 0])
        unwanted["overlap"] = overlap & remaining & usable
    for rule, rows in unwanted.items():
        for row in np.flatnonzero(rows)[:3].tolist():
            report.drop(rule, train[row]["source"], train[row]["target"])
        report.dropped[rule] = int(rows.sum())
        remaining &= ~rows
    return Splits(_where(train, remaining), others["valid"], others["test"]), report


def hold_out(groups: np.ndarray, usable: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """For each size a mask [rows] of usable rows: whole groups, in the order of their hashes."""
    _, group, counts = np.unique(groups[usable], return_inverse=True, return_counts=True)
    ends = np.concatenate([[0], counts.cumsum()])
    masks, begin = [], 0
    for size in sizes:
        end = begin + int(np.abs(ends[begin:] - ends[begin] - size).argmin())
        if size and end == begin:  # one large group comes nearer to the size than none
            end = min(begin + 1, len(counts))
        mask = np.zeros(len(groups), dtype=bool)
        mask[usable] = (group >= begin) & (group < end)
        masks.append(mask)
        begin = end
    return masks


def _first_copies(keys: np.ndarray) -> np.ndarray:
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys, return_index=True)[1]] = True
    return first


def _where(pairs: Dataset, mask: np.ndarray) -> Dataset:
    """The rows of the mask, written out: reading through ``select``'s index is slow for millions of rows."""

    def keep(table: pa.Table, rows: list[int]) -> pa.Table:
        return table.filter(mask[rows])

    arrow = pairs.with_format("arrow")
    return arrow.map(keep, batched=True, with_indices=True, new_fingerprint=uuid4().hex).with_format(None)
