"""Reports of prepared corpora, as tests need them."""

import copy

import pyarrow as pa

from pipeline.data.advice import advise
from pipeline.data.config import TokenizerConfig
from pipeline.data.report import describe
from pipeline.data.statistics import Statistics, TokenCounts
from pipeline.data.text import SIDES
from pipeline.data.tokenizer import train_tokenizers

ENGLISH = [f"The {'old ' * (number % 5)}house number {number} stands by the river." for number in range(300)]
GERMAN = [f"Das {'alte ' * (number % 5)}Haus Nummer {number} steht an dem Fluss." for number in range(300)]


def reported(sources, targets, languages=("en", "de"), coverage=1.0, of_corpora=0, values=None):
    """The report of a corpus that keeps all of these for training, with the first 250 in valid and test as well."""
    splits = {"train": slice(None), "valid": slice(250), "test": slice(250)}
    tokenizers = train_tokenizers(sources, targets, TokenizerConfig(vocab_size=100, character_coverage=coverage))
    statistics, tokens = {}, {}
    for name, part in splits.items():
        texts = sources[part], targets[part]
        statistics[name] = Statistics.of(*texts)
        tokens[name] = {}
        for side, tokenizer, some in zip(SIDES, tokenizers, texts, strict=True):
            ids = pa.chunked_array([tokenizer.encode(some)], pa.list_(pa.int32()))
            tokens[name][side] = TokenCounts.of(ids, tokenizer.vocab_size)
    pairs = {name: len(sources[part]) for name, part in splits.items()}
    codes = {side: [code] for side, code in zip(SIDES, languages, strict=True)}
    report = {
        "fingerprint": "f00",
        "sources": [{"path": "train.en", "bytes": 12}],
        "read": dict(pairs),
        "pairs": pairs,
        "dropped": {},
        "examples": {},
        "repaired": {},
        "with_controls": 0,
        "overlap": {},
        "corpora": [{"name": "train.en", "read": len(sources), "pairs": len(sources), "dropped": {}, "repaired": {}}],
        "tokenizer": {"kind": "bpe", "vocab_size": [tokenizers.source.vocab_size], "unicode_form": "NFC"},
        **describe(statistics, tokens, tokenizers, codes, [(codes, statistics["train"])] * of_corpora),
    }
    report |= values or {}
    report["warnings"] = advise(report)
    return report


def changed(report, path, value):
    """A report in which one value is another: ``changed(report, "pairs.test", 3)``."""
    report = copy.deepcopy(report)
    *outer, last = path.split(".")
    place = report
    for key in outer:
        place = place[key]
    place[last] = value
    return report
