"""From text to a prepared folder's contents: tokenizers learned from a sample of what is trained on, then each shard
encoded, in any process. What is there already is not done again.
"""

import dataclasses
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pipeline.config import Configuration
from pipeline.data.execution import Piece, Workers
from pipeline.data.notices import warnings_kept
from pipeline.data.progress import progress
from pipeline.data.report import describe
from pipeline.data.shards import encode_shard, read_json, write_json
from pipeline.data.statistics import Statistics, TokenCounts
from pipeline.data.text import SIDES, Sample, Text, TextShard, encoded_shard
from pipeline.data.tokenizer import Tokenizers, train_tokenizers

T = TypeVar("T", Statistics, TokenCounts)


def learn(text: Text, configuration: Configuration, folder: Path) -> tuple[Tokenizers, list[str]]:
    """The tokenizers, which lie in ``folder/tokenizers`` then, and warnings.

    Raises:
        ValueError: as ``train_tokenizers`` does.
    """
    done = folder / "tokenizers.json"
    config, train = configuration.tokenizer, text.splits["train"]
    if not done.exists():
        num_pairs = sum(shard.pairs for shard in train)
        step = max(1, -(-num_pairs // config.sample_pairs)) if config.sample_pairs else 1
        if not config.model:
            print(f"learning a vocabulary from {-(-num_pairs // step):,} pairs", file=sys.stderr)
        languages = _languages(configuration, "target") if configuration.corpora.tags else []
        with warnings_kept() as warnings:
            tokenizers = train_tokenizers(*(Sample(train, side, step) for side in SIDES), config, languages)
        (folder / "tokenizers").mkdir(exist_ok=True)
        tokenizers.save(folder / "tokenizers")
        write_json({"warnings": warnings}, done)
    return Tokenizers.load(folder / "tokenizers"), read_json(done)["warnings"]


def encode(
    text: Text, tokenizers: Tokenizers, configuration: Configuration, folder: Path, workers: Workers
) -> tuple[Path, dict]:
    """The folder, inside ``folder``, of all splits and the tokenizers; and numbers about them.

    Args:
        tokenizers: those that ``learn`` left in the same folder
    """
    new = folder / "new"
    for path in (new, folder / "encoded"):
        path.mkdir(exist_ok=True)
    numbers: dict[str, list[dict]] = {}
    for split, shards in text.splits.items():
        pieces = [
            piece(shard, configuration, folder / "tokenizers", encoded_shard(new, split, number), folder / "encoded")
            for number, shard in enumerate(shards)
        ]
        with progress(f"encoding {split}", sum(shard.pairs for shard in shards)) as advance:
            numbers[split] = [read_json(path) for path in workers.do(pieces, advance)]
    tokenizers.save(new)
    described = describe(
        {name: _total(Statistics, [part["statistics"] for part in parts]) for name, parts in numbers.items()},
        {
            name: {side: _total(TokenCounts, [part["tokens"][side] for part in parts]) for side in SIDES}
            for name, parts in numbers.items()
        },
        tokenizers,
        {side: _languages(configuration, side) for side in SIDES},
        _of_corpora(configuration, text.splits["train"], numbers["train"]),
    )
    unicode_form = configuration.cleaning.unicode_form
    sizes = [tokenizer.vocab_size for tokenizer in tokenizers[: 1 if tokenizers.joint else 2]]
    return new, described | {
        "pairs": {name: sum(part["pairs"] for part in parts) for name, parts in numbers.items()},
        "tokenizer": dataclasses.asdict(configuration.tokenizer) | {"vocab_size": sizes, "unicode_form": unicode_form},
    }


def piece(shard: TextShard, configuration: Configuration, tokenizers: Path, encoded: Path, reports: Path) -> Piece:
    """The work of encoding a shard, which leaves numbers about it in the folder ``reports``."""
    corpora = configuration.corpora
    language = corpora.each[shard.corpus].target_language if corpora.tags else ""
    arguments = (shard, configuration.cleaning.unicode_form, language, tokenizers, encoded)
    return Piece(encode_shard, arguments, reports / f"{encoded.stem}.json", shard.pairs)


def _of_corpora(
    configuration: Configuration, shards: list[TextShard], numbers: list[dict]
) -> list[tuple[dict[str, list[str]], Statistics]]:
    """The languages of each of several corpora, and the statistics of its training data."""
    corpora = configuration.corpora.each
    described = []
    for number, corpus in enumerate(corpora if len(corpora) > 1 else []):
        parts = [part["statistics"] for part, shard in zip(numbers, shards, strict=True) if shard.corpus == number]
        languages = {side: [getattr(corpus, f"{side}_language")] for side in SIDES}
        described.append((languages, _total(Statistics, parts)))
    return described


def _languages(configuration: Configuration, side: str) -> list[str]:
    """All that occur, each once."""
    return list(dict.fromkeys(getattr(corpus, f"{side}_language") for corpus in configuration.corpora.each))


def _total(kind: type[T], parts: Iterable[dict]) -> T:
    """The sum of what files hold."""
    first, *others = map(kind.from_dict, parts)
    for other in others:
        first += other
    return first
