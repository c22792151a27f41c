import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config import BatchingConfig, CleaningConfig, Configuration, CorporaConfig, OutputConfig, TokenizerConfig
from pipeline.data.config import CorpusConfig, PreparationConfig
from pipeline.data.preparation import Prepared
from tests.pipeline.data.reports import ENGLISH, GERMAN, reported

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


def changed(configuration: Configuration, **sections) -> Configuration:
    """``changed(configuration, cleaning={"unicode_form": "NFKC"})``"""
    new = {name: replace(getattr(configuration, name), **values) for name, values in sections.items()}
    return replace(configuration, **new)


def content(prepared: Prepared) -> tuple:
    """All that is prepared, without the times and places of it."""
    report = {name: value for name, value in prepared.report.items() if name != "files"}
    return [rows.to_dict() for rows in prepared[:3]], prepared.tokenizers.source.model, report


@pytest.fixture
def two_corpora(tmp_path) -> Configuration:
    """Two hundred pairs that are alike to no other, and thirty in other languages, of which twenty stand in both."""
    words = [f"{number * 7919 % 9973:04}{number * 104729 % 99991:05}" for number in range(900)]
    texts = [" ".join(words[number * 3 : number * 3 + 3]) for number in range(300)]
    parts = []
    for source, language, rows in (("en", "yy", range(200)), ("fr", "zz", range(180, 210))):
        lines = {side: [f"{side} {texts[row]}" for row in rows] for side in ("xx", "yy")}
        files = [write_lines(tmp_path / f"{language}.{side}", lines[side]) for side in lines]
        parts.append(CorpusConfig(train=files, source_language=source, target_language=language))
    return Configuration(
        corpora=CorporaConfig(parts=parts, valid_size=10, test_size=10),
        tokenizer=TokenizerConfig(vocab_size=60),
        preparation=PreparationConfig(workers=1),
        output=OutputConfig(data=str(tmp_path / "data")),
    )


@pytest.fixture(scope="session")
def usual() -> dict:
    """The report of three hundred pairs."""
    return reported(ENGLISH, GERMAN)
