"""Several models that translate and score as one, from objects and from folders."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from pipeline.checkpoint import build_model, save_model
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, train_tokenizers
from pipeline.inference.engine import EnsembleEngine, Source, TorchEngine
from pipeline.inference.scoring import alternatives, score_ids, score_pairs
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import Vocabulary
from tests.pipeline.conftest import CONFIGURATION
from tests.pipeline.untrained import SENTENCES, WORDS


@pytest.fixture
def together(models, tokenizers):
    return Translator(EnsembleEngine([TorchEngine(model) for model in models]), tokenizers, CONFIGURATION)


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


def test_folders_of_models_translate_and_score_as_one(models, tokenizers, tmp_path, call):
    for number, model in enumerate(models):
        configuration = dataclasses.replace(CONFIGURATION, model=model.config)
        save_model(tmp_path / str(number), model.float(), tokenizers, configuration, {})
        model.double()
    loaded = Translator.load([tmp_path / "0", tmp_path / "1"], device="cpu")
    engine = EnsembleEngine([TorchEngine(model, vocabulary=Vocabulary.of(tokenizers.target)) for model in models])
    expected = Translator(engine, tokenizers, CONFIGURATION)
    assert loaded.translate(SENTENCES) == expected.translate(SENTENCES)
    (tmp_path / "pairs.tsv").write_text("the cat\ta mat\n", encoding="utf-8")
    names = f"{tmp_path / '0'},{tmp_path / '1'}"
    status, out, _ = call("score.py", "--model", names, "--pairs", tmp_path / "pairs.tsv")
    [score] = score_pairs(expected, [("the cat", "a mat")])
    assert status == 0 and float(out.split("\t")[2]) == pytest.approx(score.log_prob, abs=1e-4)


@pytest.mark.parametrize("weights", [[], [1.0, 3.0]])
@torch.inference_mode()
def test_several_models_score_by_the_mean_of_their_probabilities(together, models, weights):
    """Computed by hand, one token after the other."""
    search = dataclasses.replace(CONFIGURATION.search, ensemble_weights=weights)
    shares = [weight / sum(weights or [2.0]) for weight in weights or [1.0, 1.0]]
    pairs = list(zip(SENTENCES, SENTENCES[::-1], strict=True))
    for pair, found in zip(pairs, score_pairs(together, pairs, search), strict=True):
        [source], [target] = (
            tokenizer.encode([text]) for tokenizer, text in zip(together.tokenizers, pair, strict=True)
        )
        log_prob = 0.0
        for place, token in enumerate([*target, EOS_ID]):
            mean = 0.0
            for model, share in zip(models, shares, strict=True):
                said = model(torch.tensor([[*source, EOS_ID]]), torch.tensor([[BOS_ID, *target[:place]]]))[0, -1]
                said[[PAD_ID, UNK_ID, BOS_ID]] = -math.inf
                mean += share * said.softmax(0)[token].item()
            log_prob += math.log(mean)
        assert found.log_prob == pytest.approx(log_prob, rel=1e-5) and found.tokens == len(target) + 1


@pytest.mark.parametrize("rule", ["probability", "log_probability"])
def test_translations_of_several_models_get_the_score_that_their_search_gave_them(together, rule):
    search = dataclasses.replace(CONFIGURATION.search, ensemble=rule, ensemble_weights=[2.0, 1.0], tokens_per_batch=9)
    search = dataclasses.replace(search, repetition_penalty=1.3)
    wish = 6.0 * F.one_hot(torch.tensor(EOS_ID), together.tokenizers.target.vocab_size)  # to come to an end
    for engine in together.engine.engines:
        engine.project = lambda hidden, project=engine.project: project(hidden) + wish
    sources = [tuple(ids) for ids in together.tokenizers.source.encode(SENTENCES)]
    found = together.engine.search([Source(ids) for ids in sources], search, 3)
    pairs = [(ids, each) for ids, row in zip(sources, found, strict=True) for each in row if each.finished]
    assert len(pairs) > 6
    scores = score_ids(together.engine.engines, [ids for ids, _ in pairs], [each.ids for _, each in pairs], search)
    assert [each.score for each in scores] == pytest.approx([each.score for _, each in pairs], abs=1e-5)


def test_the_best_alternative_of_several_models_is_where_they_go_together(together):
    search = dataclasses.replace(CONFIGURATION.search, beam_size=1, min_length=2)
    [best] = alternatives(together, SENTENCES[2], "", 1, search)
    [[greedy]] = together.hypotheses(SENTENCES[2:3], search)
    assert best.translation.text == greedy.text and best.translation.score == pytest.approx(greedy.score)


def test_models_of_other_tokenizers_of_the_same_size_do_not_translate_as_one(tokenizers, tmp_path):
    reversed_words = [" ".join(word[::-1] for word in WORDS[i:] + WORDS[:i]) for i in range(len(WORDS))]
    others = train_tokenizers(reversed_words, reversed_words, CONFIGURATION.tokenizer)
    assert others.source.vocab_size == tokenizers.source.vocab_size
    for name, each in (("one", tokenizers), ("other", others)):
        save_model(tmp_path / name, build_model(CONFIGURATION, each), each, CONFIGURATION, {})
    with pytest.raises(ValueError, match=r"one and .*other have different tokenizers and cannot translate as one"):
        Translator.load([tmp_path / "one", tmp_path / "other"])
