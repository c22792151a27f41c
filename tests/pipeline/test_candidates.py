"""Of all that a search finds, the least risk comes first, and a list has as many different texts as there are."""

import dataclasses

import pytest

from models.search import Hypothesis
from pipeline.inference.engine import Source, TorchEngine
from pipeline.inference.risk import choose
from pipeline.inference.translator import Translator
from tests.pipeline.conftest import CONFIGURATION, Echo
from tests.pipeline.untrained import SENTENCES


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("method, num", [("beam", 8), ("sampling", 8)])
def test_the_translation_of_least_risk_comes_first(models, tokenizers, metric, method, num):
    translator = Translator(TorchEngine(models[0], workers=2), tokenizers, CONFIGURATION)
    search = dataclasses.replace(CONFIGURATION.search, method=method, minimum_bayes_risk=metric, candidates=8)
    plain = dataclasses.replace(search, minimum_bayes_risk="none", beam_size=num)
    sources = [Source(tuple(ids)) for ids in tokenizers.source.encode(SENTENCES)]
    for row, source in zip(translator.hypotheses(SENTENCES, search, 3), sources, strict=True):
        [hypotheses] = translator.engine.search([source], plain, num)
        texts = tokenizers.target.decode([each.ids for each in hypotheses])
        best = texts[choose(texts, metric)]
        others = [text for text in dict.fromkeys(texts) if text != best]
        assert [each.text for each in row] == [best, *others][:3]


def test_the_least_risk_is_sought_among_as_many_candidates_of_a_beam_as_of_samples(translator):
    engine = Echo([Hypothesis([5], -1.0, True)])
    echo = Translator(engine, translator.tokenizers, translator.configuration)
    for changes in ({}, {"diverse_groups": 3}, {"candidates": 2}, {"method": "sampling"}):
        echo.translate(
            ["seen"], dataclasses.replace(translator.search, minimum_bayes_risk="chrf", **{"candidates": 16, **changes})
        )
    assert engine.beams == [(16, 16), (18, 18), (3, 3), (3, 16)]
    with pytest.raises(ValueError, match="search.candidates=2000 are more than the 1000 that a beam may have: lower"):
        dataclasses.replace(translator.search, minimum_bayes_risk="bleu", candidates=2000)


def test_a_list_in_which_equal_texts_leave_room_is_filled_up_behind_its_first(translator):
    the, cat, old = translator.tokenizers.target.encode(["the", "cat", "old"])
    spelt = translator.tokenizers.target.processor.piece_to_id
    again = [spelt(piece) for piece in ("▁", *"the")]
    hypotheses = [Hypothesis(ids, score, True) for ids, score in ((the, -1), (again, -2), (cat, -4), (old, -0.5))]
    engine = Echo([*hypotheses, Hypothesis([*cat, *old], -3, True)])
    echo = Translator(engine, translator.tokenizers, translator.configuration)
    [found] = echo.hypotheses(["seen"], None, 3)
    # Of the beam of six, what is better than the first would have made another one the best.
    assert [(each.text, each.score) for each in found] == [("the", -1), ("cat old", -3), ("cat", -4)]
    assert engine.beams == [(3, 3), (6, 6)]
    echo.hypotheses(["seen"], None, 1)
    assert engine.beams[2:] == [(3, 1)]
