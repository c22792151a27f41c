"""A model on disk for the command, the same one loaded, and a long text with its translations."""

import pytest

from models.config import ModelConfig
from pipeline.checkpoint import save_model
from pipeline.config import Configuration, SearchConfig
from pipeline.inference.translator import Translator
from tests.pipeline.translate_command.command import here
from tests.pipeline.untrained import SIZES, TOKENIZER, WORDS, untrained


@pytest.fixture(scope="session")
def model(tokenizers, tmp_path_factory):
    """Its folder."""
    configuration = Configuration(
        tokenizer=TOKENIZER,
        model=ModelConfig(decoder_layers=2, **SIZES),
        search=SearchConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3, max_source_tokens=40),
    )
    folder = tmp_path_factory.mktemp("run") / "model"
    save_model(folder, untrained(configuration, tokenizers, seed=6), tokenizers, configuration, {})
    return folder


@pytest.fixture(scope="session")
def translator(model):
    return Translator.load(model, device="cpu")


@pytest.fixture(scope="session")
def many(model, tmp_path_factory):
    """700 lines, and their translations in one go."""
    source = tmp_path_factory.mktemp("many") / "in.txt"
    source.write_text(text_of(700), encoding="utf-8")
    here(model, str(source), source.with_name("out.txt"), beam_size=1)
    return source


def sentence(number: int) -> str:
    return " ".join(WORDS[(number * 7 + i * (number % 5 + 1)) % 16] for i in range(1 + number % 6))


def text_of(count: int) -> str:
    """So many lines, of which every fourth is blank."""
    return "".join(f"{sentence(i) if i % 4 else ''}\n" for i in range(count))
