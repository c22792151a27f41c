"""Train, valid and test without leaks: no sentence stands on both sides of a split, whatever its spelling.

Rows are compared by 64-bit hashes alone. Mixed with a seed, the order of hashes is as good as a shuffle and depends on
nothing but the text, so it also decides what is held out. Hashes lie in files and are sorted some millions at a time.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64_intdigest

from pipeline.data.config import CleaningConfig, CorporaConfig

VERDICTS = (
    "train",
    "valid",
    "test",
    "duplicate",
    "duplicate_source",
    "duplicate_target",
    "near_duplicate",
    "overlap",
    "near_overlap",
)
"""What becomes of a row that cleaning has kept; the places are the numbers that stand in files."""

TRAIN, VALID, TEST = range(3)

CHUNK = 1 << 20
"""Rows that are looked at together."""

BUCKET = 1 << 22
"""Rows that are sorted together, at most (about)."""


Texts = tuple[list[str], list[str]]
"""Sources and targets."""


class Keys(NamedTuple):
    """Hashes [rows] of what is compared."""

    pair: np.ndarray
    """Both sides, normalised."""

    group: np.ndarray
    """The row's group, or else the folded source: what is held out together."""

    source: np.ndarray
    """The folded source."""

    target: np.ndarray
    """The folded target."""


def compute_keys(pairs: Texts, folded: Texts, groups: list[str]) -> np.ndarray:
    """The columns of ``Keys`` of normalised pairs, whose folded sides are given too: [4, rows]."""
    both = hash_texts(f"{source}\0{target}" for source, target in zip(*pairs, strict=True))
    source, target = map(hash_texts, folded)
    group = np.where(np.array(groups, dtype=bool), hash_texts(groups), source) if any(groups) else source
    return np.stack([both, group, source, target])


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    return np.fromiter((xxh3_64_intdigest(text.encode()) for text in texts), np.uint64)


class Decision(NamedTuple):
    verdicts: np.ndarray
    """For each row the place in ``VERDICTS``."""

    overlap: dict[str, int]
    """Rows that share a side with valid or test, by the split; dropped or not."""


def decide(
    keys: Keys,
    named: dict[str, np.ndarray],
    corpora: CorporaConfig,
    cleaning: CleaningConfig,
    folder: Path,
    bands: Iterable[np.ndarray] = (),
    alike: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Decision:
    """What becomes of each row of the training data.

    Of equal pairs, sources or targets the first stays, and one of those that are alike; then groups are held out for
    the splits that are not ``named``, whole unless they are far too large; then what shares a side with held-out data
    goes.

    Args:
        named: hashes of both sides, folded, of the splits that exist
        bands: ``near.near_keys`` [bands, rows], where near duplicates are to go
        alike: whether each of some rows is alike to its counterpart among others
        folder: room for files in between
    """
    verdicts = np.zeros(len(keys.pair), dtype=np.uint8)
    for wanted, column, verdict in (
        (cleaning.drop_duplicates, keys.pair, "duplicate"),
        (cleaning.drop_duplicate_sources, keys.source, "duplicate_source"),
        (cleaning.drop_duplicate_targets, keys.target, "duplicate_target"),
    ):
        if wanted:
            for copies, _ in later_copies(column, verdicts, folder):
                verdicts[copies] = VERDICTS.index(verdict)
    for band in bands:
        for rows, others in later_copies(band, verdicts, folder):
            verdicts[rows[alike(rows, others)]] = VERDICTS.index("near_duplicate")

    sizes = {name: getattr(corpora, f"{name}_size") for name in ("valid", "test") if name not in named}
    num_rows = int(np.count_nonzero(verdicts == TRAIN))
    if sum(sizes.values()) > num_rows / 2:
        tenth = num_rows // 10
        asked = " and ".join(f"corpora.{name}_size={size}" for name, size in sizes.items())
        warnings.warn(f"{asked} would leave too little of {num_rows} pairs: {tenth} held out each", stacklevel=2)
        sizes = dict.fromkeys(sizes, tenth)
    seen = {name: np.unique(sides) for name, sides in named.items()}
    for name, rows in zip(sizes, _held_out(keys, verdicts, sizes, corpora.split_seed), strict=True):
        for others in seen.values():
            rows = rows[~_has_side_in(keys, rows, others)]  # or else one target could be in valid and in test
        if abs(len(rows) - sizes[name]) > sizes[name] / 10:
            warnings.warn(
                f"{len(rows)} pairs are held out for {name} instead of {sizes[name]}: all copies of a source, or all "
                "of a group, go together, without those that share a side with another split: another "
                "corpora.split_seed holds out others",
                stacklevel=2,
            )
        verdicts[rows] = VERDICTS.index(name)
        seen[name] = np.unique(np.concatenate([keys.source[rows], keys.target[rows]]))

    overlap = dict.fromkeys(seen, 0)
    for rows in _rows(verdicts):
        for name, sides in seen.items():
            shared = _has_side_in(keys, rows, sides)
            overlap[name] += int(np.count_nonzero(shared))
            if cleaning.drop_overlap or name in sizes:
                verdicts[rows[shared]] = VERDICTS.index("overlap")
    return Decision(verdicts, overlap)


def _held_out(keys: Keys, verdicts: np.ndarray, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    """``hold_out`` whole groups, or, with a warning where these are far too large, the copies of single sources."""
    wanted = list(sizes.values())
    whole = hold_out(keys.group, verdicts, wanted, seed)
    num_whole = sum(map(len, whole))
    too_large = any(len(rows) > 2 * size for rows, size in zip(whole, wanted, strict=True))
    if too_large or num_whole == np.count_nonzero(verdicts == TRAIN):
        copies = hold_out(keys.source, verdicts, wanted, seed)
        if sum(map(len, copies)) < num_whole:
            counts = zip(sizes.items(), whole, strict=True)
            found = " and ".join(f"{len(rows)} pairs for {name} instead of {size}" for (name, size), rows in counts)
            others = " and ".join(f"corpora.{name}" for name in sizes)
            warnings.warn(
                f"whole groups (documents, catalogs) would be {found}: single pairs are held out, from groups that "
                f"are also trained on; to score others, name {others}",
                stacklevel=3,
            )
            return copies
    return whole


def hold_out(groups: np.ndarray, verdicts: np.ndarray, sizes: list[int], seed: int) -> list[np.ndarray]:
    """For each size the numbers of rows for training to hold out: whole groups in an order that the seed decides, as
    many as come nearest to the size, or, where that is far off, those that fit."""
    enough = sum(sizes) + len(sizes)  # groups, as each has a row at least
    lowest = np.zeros(0, dtype=np.uint64)
    for some in _rows(verdicts):
        ranks = _mix(groups[some], seed)
        if 0 < enough == len(lowest):
            ranks = ranks[ranks < lowest[-1]]
        lowest = np.unique(np.concatenate([lowest, ranks]))[:enough]
    if not len(lowest):
        return [np.zeros(0, dtype=np.int64) for _ in sizes]
    rows, ranks = [], []
    for some in _rows(verdicts):
        mixed = _mix(groups[some], seed)
        low = mixed <= lowest[-1]
        rows.append(some[low])
        ranks.append(mixed[low])
    all_rows, group = np.concatenate(rows), np.searchsorted(lowest, np.concatenate(ranks))
    counts = np.bincount(group, minlength=len(lowest))

    def are_near(parts: list[np.ndarray]) -> bool:
        return all(size / 2 <= counts[part].sum() <= 2 * size for part, size in zip(parts, sizes, strict=True))

    parts, fitting = _nearest(counts, sizes), _fitting(counts, sizes)
    if not are_near(parts) and are_near(fitting):
        parts = fitting
    return [all_rows[part[group]] for part in parts]


def _nearest(counts: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Masks of groups: for each size so many of the next ones as come nearest to it."""
    ends, numbers = np.concatenate([[0], counts.cumsum()]), np.arange(len(counts))
    parts, begin = [], 0
    for size in sizes:
        end = begin + int(np.abs(ends[begin:] - ends[begin] - size).argmin())
        if size and end == begin:  # one large group comes nearer to the size than none
            end = begin + 1
        parts.append((begin <= numbers) & (numbers < end))
        begin = end
    return parts


def _fitting(counts: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Masks of groups: each group goes to the first size that has room for it left, if any has."""
    left, parts = list(sizes), [np.zeros(len(counts), dtype=bool) for _ in sizes]
    for group, count in enumerate(counts.tolist()):
        number = next((number for number, room in enumerate(left) if count <= room), None)
        if number is not None:
            parts[number][group] = True
            left[number] -= count
    return parts


def later_copies(keys: np.ndarray, verdicts: np.ndarray, folder: Path) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows for training whose key an earlier one has, some at a time, and the first one of each."""
    bits = max(0, (len(keys) - 1).bit_length() - BUCKET.bit_length() + 1)
    kind = np.dtype([("key", np.uint64), ("row", np.int64)])
    with tempfile.TemporaryDirectory(dir=folder) as buckets, ExitStack() as stack:
        files = [stack.enter_context(open(f"{buckets}/{number}", "w+b")) for number in range(1 << bits)]
        for rows in _rows(verdicts):
            part = np.empty(len(rows), kind)
            part["key"], part["row"] = keys[rows], rows
            number = (part["key"] >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(rows), int)
            ends = np.bincount(number, minlength=len(files)).cumsum()
            part = part[np.argsort(number, kind="stable")]
            for file, begin, end in zip(files, [0, *ends], ends, strict=False):
                file.write(part[begin:end].tobytes())
        for file in files:
            file.seek(0)
            part = np.fromfile(file, kind)
            _, index, inverse = np.unique(part["key"], return_index=True, return_inverse=True)
            firsts = part["row"][index[inverse]]
            later = firsts != part["row"]
            yield part["row"][later], firsts[later]


def _rows(verdicts: np.ndarray) -> Iterator[np.ndarray]:
    """The numbers of the rows that are for training so far, some at a time."""
    for begin in range(0, len(verdicts), CHUNK):
        yield begin + np.flatnonzero(verdicts[begin : begin + CHUNK] == TRAIN)


def _has_side_in(keys: Keys, rows: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """True for rows either side of which is among sorted hashes."""
    found = np.zeros(len(rows), dtype=bool)
    for column in (keys.source, keys.target) if len(sides) else ():
        hashes = column[rows]
        found |= sides[np.minimum(np.searchsorted(sides, hashes), len(sides) - 1)] == hashes
    return found


def _mix(keys: np.ndarray, seed: int) -> np.ndarray:
    """Other 64 bits for each seed (the finaliser of SplitMix64; Steele et al., 2014)."""
    mixed = keys ^ np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
