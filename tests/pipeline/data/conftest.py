import gzip
from pathlib import Path

import pytest

from pipeline.config import BatchingConfig, CleaningConfig, Configuration, CorporaConfig, OutputConfig, TokenizerConfig

WORDS = "ra ke mi to lu ba ne so pi du".split()


def sentence(number: int, length: int) -> str:
    return " ".join(WORDS[(number * 7 + place * (1 + number % 3)) % 10] for place in range(length))


def write_lines(path: Path, lines: list[str]) -> str:
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(("\n".join(lines) + "\n").encode())
    return str(path)


@pytest.fixture
def configuration(tmp_path) -> Configuration:
    """Sixty different training pairs and seven for validation and test, in files of the test's own folder."""
    corpus = {
        "train": [f"{number} {sentence(number, 1 + number % 12)}" for number in range(60)],
        "valid": [f"v {sentence(number, 3 + number)}" for number in range(7)],
        "test": [f"t\u00a0 {sentence(number, 3 + number)}" for number in range(7)],
    }
    files = {
        split: [
            write_lines(tmp_path / f"{split}.{side}", [f"{side} {line}" for line in lines]) for side in ("xx", "yy")
        ]
        for split, lines in corpus.items()
    }
    return Configuration(
        corpora=CorporaConfig(**files),
        cleaning=CleaningConfig(near_overlap=0),  # ten words make sentences that are alike
        tokenizer=TokenizerConfig(vocab_size=50),
        batching=BatchingConfig(tokens_per_batch=100),
        output=OutputConfig(data=str(tmp_path / "data")),
    )
