"""What tests of translating share: tokenizers, untrained models in double precision, and an engine that repeats."""

import dataclasses

import pytest

from models.config import ModelConfig
from pipeline.config import Configuration, SearchConfig
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference.engine import TorchEngine
from pipeline.inference.translator import Translator
from tests.pipeline.untrained import SIZES, TEXT, TOKENIZER, untrained

CONFIGURATION = Configuration(
    tokenizer=TOKENIZER,
    model=ModelConfig(decoder_layers=2, **SIZES),
    search=SearchConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
)
"""Of ``models``."""


@pytest.fixture(scope="session")
def tokenizers():
    return train_tokenizers(TEXT, TEXT, TOKENIZER)


@pytest.fixture(scope="session")
def translator(tokenizers):
    configuration = Configuration(
        tokenizer=TOKENIZER,
        model=ModelConfig(decoder_layers=1, **SIZES),
        search=SearchConfig(beam_size=3, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    model = untrained(configuration, tokenizers, seed=4).double()
    return Translator(TorchEngine(model), tokenizers, configuration)


@pytest.fixture(scope="session")
def models(tokenizers):
    """Two, of which the second has one layer less."""
    found = []
    for seed, layers in ((4, 2), (5, 1)):
        config = dataclasses.replace(CONFIGURATION, model=ModelConfig(decoder_layers=layers, **SIZES))
        found.append(untrained(config, tokenizers, seed).double())
    return found


class Echo:
    """An engine whose hypotheses are given, as many as its beam has."""

    def __init__(self, hypotheses):
        self.hypotheses, self.beams = hypotheses, []

    def require(self, search):
        pass

    def search(self, sources, search, num_hypotheses=1):
        self.beams.append((search.beam_size, num_hypotheses))
        return [self.hypotheses[: search.beam_size][:num_hypotheses] for _ in sources]
