"""Several models that translate as one, from objects and from folders."""

import dataclasses

import pytest

from pipeline.checkpoint import build_model, save_model
from pipeline.data.tokenizer import train_tokenizers
from pipeline.inference.engine import EnsembleEngine, TorchEngine
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import Vocabulary
from tests.pipeline.conftest import CONFIGURATION
from tests.pipeline.untrained import SENTENCES, WORDS


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_a_model_with_itself_translates_as_alone(models, tokenizers, rule):
    alone = Translator(TorchEngine(models[0], workers=2), tokenizers, CONFIGURATION)
    twice = Translator(EnsembleEngine([TorchEngine(models[0])] * 2), tokenizers, CONFIGURATION)
    for found, expected in zip(
        twice.hypotheses(
            SENTENCES, dataclasses.replace(CONFIGURATION.search, ensemble=rule, ensemble_weights=[1.0, 2.0]), 3
        ),
        alone.hypotheses(SENTENCES, None, 3),
        strict=True,
    ):
        assert [each.text for each in found] == [each.text for each in expected]
        assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=1e-5)


def test_folders_of_models_translate_as_one(models, tokenizers, tmp_path):
    for number, model in enumerate(models):
        configuration = dataclasses.replace(CONFIGURATION, model=model.config)
        save_model(tmp_path / str(number), model.float(), tokenizers, configuration, {})
        model.double()
    loaded = Translator.load([tmp_path / "0", tmp_path / "1"], device="cpu")
    engine = EnsembleEngine([TorchEngine(model, vocabulary=Vocabulary.of(tokenizers.target)) for model in models])
    expected = Translator(engine, tokenizers, CONFIGURATION)
    assert loaded.translate(SENTENCES) == expected.translate(SENTENCES)


def test_models_of_other_tokenizers_of_the_same_size_do_not_translate_as_one(tokenizers, tmp_path):
    reversed_words = [" ".join(word[::-1] for word in WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    others = train_tokenizers(reversed_words, reversed_words, CONFIGURATION.tokenizer)
    assert others.source.vocab_size == tokenizers.source.vocab_size
    for name, each in (("one", tokenizers), ("other", others)):
        save_model(tmp_path / name, build_model(CONFIGURATION, each), each, CONFIGURATION, {})
    with pytest.raises(ValueError, match=r"one and .*other have different tokenizers and cannot translate as one"):
        Translator.load([tmp_path / "one", tmp_path / "other"])
