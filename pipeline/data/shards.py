"""What is done to one shard of a corpus: functions from files to files, which any process can do.

Each writes its report last: where that is, the shard is whole.
"""

import io
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from pipeline.data.arrow import map_arrow, write_arrow
from pipeline.data.cleaning import Cleaner, Report, normalise
from pipeline.data.near import NearOverlap, fold, near_keys
from pipeline.data.splitting import TRAIN, compute_keys
from pipeline.data.statistics import Statistics, TokenCounts
from pipeline.data.text import SIDES, TextShard
from pipeline.data.tokenizer import Tokenizers

CLEAN = pa.schema({"source": pa.string(), "target": pa.string(), "row": pa.int32()})
"""What cleaning keeps of a shard, normalised, and where it stood in the raw one."""

IDS = pa.list_(pa.int32())
ENCODED = pa.schema(
    {"source": pa.string(), "target": pa.string(), "source_ids": IDS, "target_ids": IDS, "corpus": pa.int32()}
)


def clean_shard(raw: Path, cleaner: Cleaner, near_duplicates: float, output: Path) -> None:
    """The pairs of a raw shard that are kept, beside the report as ``.arrow``, and their keys as ``.npy``: those of
    ``compute_keys``, and of ``near_keys`` where near duplicates are looked for."""
    report, keys = Report(), []

    def batches() -> Iterator[list]:
        nonlocal report
        first_row = 0
        for batch in map_arrow(raw).to_batches():
            sources, targets, groups, faults = (column.to_pylist() for column in batch.columns)
            cleaned = cleaner(sources, targets, faults)
            report += cleaned.report
            pairs = cleaned.sources, cleaned.targets
            folded = list(map(fold, cleaned.sources)), list(map(fold, cleaned.targets))
            keys.append(compute_keys(pairs, folded, [groups[row] for row in cleaned.rows]))
            if near_duplicates:
                both = [f"{source}\0{target}" for source, target in zip(*folded, strict=True)]
                keys[-1] = np.concatenate([keys[-1], near_keys(both, near_duplicates).T])
            yield [cleaned.sources, cleaned.targets, [first_row + row for row in cleaned.rows]]
            first_row += len(batch)

    pairs = write_arrow(output.with_suffix(".arrow"), CLEAN, batches())
    write_array(np.concatenate(keys, axis=1), output.with_suffix(".npy"))
    write_json({"pairs": pairs, "cleaning": report.as_dict()}, output)


def find_near_overlap(clean: Path, verdicts: Path, first: int, near_overlap: NearOverlap, output: Path) -> None:
    """A mask of the pairs of a cleaned shard: those for training with a side that is like a held-out text."""
    pairs = map_arrow(clean)
    near = np.load(verdicts, mmap_mode="r")[first : first + len(pairs)] == TRAIN
    begin = 0
    for batch in pairs.to_batches():
        rows = begin + np.flatnonzero(near[begin : begin + len(batch)])
        found = (near_overlap.find(list(map(fold, batch[side].take(rows - begin).to_pylist()))) for side in SIDES)
        near[rows] = np.logical_or(*found)
        begin += len(batch)
    write_array(near, output)


def encode_shard(
    shard: TextShard, unicode_form: str, language: str, tokenizers: Path, encoded: Path, output: Path
) -> None:
    """Write the pairs to ``encoded``, and numbers about them. The text stays as it is, and the ids are of the
    normalised text; where a ``language`` is named, sources have the tag that asks for it."""
    both = Tokenizers.load(tokenizers)
    statistics = Statistics.of([], [])
    tokens = [TokenCounts.of(pa.chunked_array([], IDS), tokenizer.vocab_size) for tokenizer in both]

    def rows() -> Iterator[list]:
        nonlocal statistics
        for texts in shard.batches():
            sources, targets = (
                texts if shard.normalised else [[normalise(text, unicode_form) for text in side] for side in texts]
            )
            ids = [lists(both.encode_source(sources, language)), lists(both.target.encode(targets))]
            statistics += Statistics.of(sources, targets)
            for place, tokenizer in enumerate(both):
                tokens[place] += TokenCounts.of(pa.chunked_array([ids[place]]), tokenizer.vocab_size)
            yield [*texts, *ids, np.full(len(sources), shard.corpus, dtype=np.int32)]

    pairs = write_arrow(encoded, ENCODED, rows())
    counts = {side: of_side.as_dict() for side, of_side in zip(SIDES, tokens, strict=True)}
    write_json({"pairs": pairs, "statistics": statistics.as_dict(), "tokens": counts}, output)


def lists(rows: list[list[int]]) -> pa.ListArray:
    """``pa.array(rows)``, in a third of its time."""
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.fromiter(chain.from_iterable(rows), np.int32, offsets[-1]))


def write_json(values: dict, path: Path) -> None:
    """Write a file that is there whole or not at all."""
    _write(json.dumps(values, ensure_ascii=False).encode(), path)


def write_array(array: np.ndarray, path: Path) -> None:
    """The same of an array for ``np.load``; ``np.save`` would not tell that the disk is full."""
    content = io.BytesIO()
    np.save(content, array)
    _write(content.getbuffer(), path)


def _write(content: bytes | memoryview, path: Path) -> None:
    new = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
    new.write_bytes(content)
    new.replace(path)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))
