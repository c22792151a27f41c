"""Every setting of a search reaches the model: what is returned has the score of forced decoding, and depends on its
sentence alone."""

import copy
import dataclasses
import random
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from models.attention_maps import attention_maps
from models.config import ModelConfig
from models.ensemble import Ensemble, EnsembleState
from models.length import LENGTH_NORMALISATIONS
from models.search import score_targets
from models.terms import contains
from models.transformer import Transformer
from pipeline.checkpoint import build_model
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from pipeline.inference import engine as engine_module
from pipeline.inference.engine import EnsembleEngine, Source, TorchEngine, memory_of
from pipeline.inference.translation import Sentence
from pipeline.inference.translator import Translator
from pipeline.inference.vocabulary import ANY, Vocabulary, occurs
from tests.pipeline.conftest import CONFIGURATION
from tests.pipeline.untrained import SENTENCES


@pytest.fixture(scope="module")
def sources(tokenizers):
    ids = tokenizers.source.encode(SENTENCES)
    prefixes = [(), (5, 6), (), (9,), (7, 8, 7, 8, 9, 5), ()]
    return [Source(tuple(each), prefix) for each, prefix in zip(ids, prefixes, strict=True)]


def longest_first(sources):
    return sorted(sources, key=lambda source: -len(source.ids))


def settings(**changes):
    return dataclasses.replace(CONFIGURATION.search, **changes)


SETTINGS = {
    "beam": {},
    "greedy": {"beam_size": 1},
    "gnmt": {"length_normalisation": "gnmt", "length_penalty": 0.6},
    "word reward": {"length_normalisation": "word_reward", "length_penalty": 0.3},
    "no normalisation": {"length_normalisation": "none"},
    "repetition": {"repetition_penalty": 1.4},
    "rules": {"no_repeat_ngram": 2, "min_length": 3},
    "groups": {"diverse_groups": 2, "diversity_penalty": 0.8},
    "coverage": {"coverage_penalty": 0.5},
    "sampling": {"method": "sampling", "temperature": 0.8},
    "few": {"method": "sampling", "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram": 2},
}
BANNED = [(11,), (12, 13)]


def engine_of(models, number, vocabulary=ANY):
    engines = [TorchEngine(model, workers=2, vocabulary=vocabulary) for model in models[:number]]
    return engines[0] if number == 1 else EnsembleEngine(engines)


def forced_logits(models, search, source, target_in):
    """The next token's, after each of ``target_in``."""
    if len(models) == 1:
        return models[0](source, target_in)
    ensemble = Ensemble([model.step for model in models], ANY.forbidden_ids, search.ensemble, search.ensemble_weights)
    state = EnsembleState(tuple(model.start(model.encode(source)) for model in models))
    logits = []
    for ids in target_in.split(1, 1):
        each, state = ensemble.step(ids, state)
        logits.append(each)
    return torch.stack(logits, 1)


def forced_score(models, search, source, hypothesis):
    tokens = torch.tensor([[*hypothesis.ids] + [EOS_ID] * hypothesis.finished])
    ids, target_in = torch.tensor([[*source.ids, EOS_ID]]), torch.cat([torch.tensor([[BOS_ID]]), tokens[:, :-1]], 1)
    score = score_targets(
        forced_logits(models, search, ids, target_in),
        tokens,
        pad_id=PAD_ID,
        forbidden_ids=ANY.forbidden_ids,
        length=LENGTH_NORMALISATIONS[search.length_normalisation](search.length_penalty),
        repetition=search.repetition_penalty,
    ).item()
    if hypothesis.finished and search.coverage_penalty:
        received = [attention_maps(model, ids, target_in).cross[-2:][0].mean(1).sum(1) for model in models]
        bonuses = [each.clamp(max=1).log().sum().item() for each in received]
        score += search.coverage_penalty * sum(bonuses) / len(bonuses)
    return score


def obeys(search, source, hypothesis, limit):
    ids = tuple(hypothesis.ids)
    assert ids[: len(source.prefix)] == source.prefix
    assert all(contains(ids, term) for term in source.terms if hypothesis.finished)
    rest = ids[len(source.prefix) :]
    assert not any(contains(rest, phrase) for phrase in BANNED)
    assert not set(ids) & {*ANY.forbidden_ids, EOS_ID}
    assert len(ids) + hypothesis.finished <= limit
    assert not hypothesis.finished or len(ids) + 1 >= search.min_length or source.prefix


@pytest.mark.parametrize(
    "name, number", [(name, 1) for name in SETTINGS] + [(name, 2) for name in ("beam", "repetition", "coverage", "few")]
)
@torch.inference_mode()
def test_scores_are_those_of_forced_decoding(models, sources, name, number):
    search = settings(**SETTINGS[name])
    engine = engine_of(models, number)
    wanted = search.beam_size if search.method == "beam" else 3
    found = engine.search(longest_first(sources), search, wanted, BANNED)
    assert sum(map(len, found)) > len(found) or wanted == 1
    for source, hypotheses in zip(longest_first(sources), found, strict=True):
        limit = max(search.max_length(len(source.ids)), len(source.prefix) + 1)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for hypothesis in hypotheses:
            obeys(search, source, hypothesis, limit)
            assert hypothesis.score == pytest.approx(
                forced_score(models[:number], search, source, hypothesis), abs=2e-5
            )


@torch.inference_mode()
def test_terms_are_met_beside_a_prefix_and_banned_phrases(models, sources):
    search = settings()
    asked = [source._replace(terms=((20, 21), (30,))) for source in longest_first(sources)[::2]]
    for source, hypotheses in zip(asked, TorchEngine(models[0]).search(asked, search, 3, BANNED), strict=True):
        limit = max(search.max_length(len(source.ids)), len(source.prefix) + 4)
        for hypothesis in hypotheses:
            obeys(search, source, hypothesis, limit)
            assert hypothesis.score == pytest.approx(forced_score(models[:1], search, source, hypothesis), abs=2e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_batches_and_their_order_change_nothing(models, sources, name):
    search = settings(**SETTINGS[name])
    engine = engine_of(models, 2 if name in ("beam", "coverage", "few") else 1)
    wanted = 2 if search.beam_size > 1 else 1
    expected = dict(zip(sources, engine.search(sources, search, wanted, BANNED), strict=True))
    assert len({str(found) for found in expected.values()}) > 3
    shuffled = random.Random(1).sample(sources, len(sources))
    for budget in (1, 30):
        some = dataclasses.replace(search, tokens_per_batch=budget)
        for source, found in zip(shuffled, engine.search(shuffled, some, wanted, BANNED), strict=True):
            assert [h.ids for h in found] == [h.ids for h in expected[source]]
            assert [h.score for h in found] == pytest.approx([h.score for h in expected[source]], abs=1e-5)


@torch.no_grad()
def test_sources_encoded_a_few_at_a_time_are_what_they_are_together(models, sources, monkeypatch):
    model, lengths = models[0], []
    together = memory_of(longest_first(sources), model, torch.device("cpu"))
    monkeypatch.setattr(engine_module, "ENCODED_AT_ONCE", 2 * together.keys.size(1))
    monkeypatch.setattr(model, "encode", lambda ids, encode=model.encode: lengths.append(ids.size(1)) or encode(ids))
    few = memory_of(longest_first(sources), model, torch.device("cpu"))
    assert len(lengths) > 1 and lengths[-1] < lengths[0]
    assert few.keys.equal(together.keys)
    assert_close(few.states[few.keys], together.states[few.keys], atol=1e-6, rtol=1e-5)


def test_in_8_bits_no_bit_of_a_score_depends_on_the_batch():
    """Where numbers are rounded, the least difference becomes a large one now and then."""
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=4, decoder_layers=2, d_model=64, d_ff=128, num_heads=4)
    engine = TorchEngine(Transformer(config, 200, 200, PAD_ID).eval(), "int8", workers=1)
    sources = [Source(tuple(torch.randint(4, 200, (length,)).tolist())) for length in range(60, 2, -1)]
    search = settings(beam_size=2, max_length_ratio=0.0, max_length_extra=6)
    alone, together = (engine.search(sources, dataclasses.replace(search, tokens_per_batch=n)) for n in (1, 4096))
    assert alone == together


def test_what_is_drawn_is_decided_by_the_seed_and_the_sentence(models, sources):
    engine = TorchEngine(models[0])
    drawn = [engine.search(sources, settings(method="sampling", seed=seed), 2) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_is_asked_for_has_room_below_any_limit(models):
    search = settings(max_length_ratio=0.0, max_length_extra=1)
    prefix, terms = (5, 6, 7, 8), ((20, 21), (22,))
    [[hypothesis]] = TorchEngine(models[0]).search([Source((9, 10), prefix, terms)], search)
    assert tuple(hypothesis.ids[:4]) == prefix and all(contains(hypothesis.ids, term) for term in terms)


def test_a_prefix_beyond_the_limit_is_all_there_is(models):
    search = settings(max_length_ratio=0.0, max_length_extra=3)
    for method in ("beam", "sampling"):
        engine, search = TorchEngine(models[0]), dataclasses.replace(search, method=method)
        [[beyond]] = engine.search([Source((9, 10), (5, 6, 7, 8))], search)
        assert (beyond.ids, beyond.finished) == ([5, 6, 7, 8], False)
        [[below]] = engine.search([Source((9, 10), (5, 6))], search)
        assert below.ids[:2] == [5, 6] and len(below.ids) + below.finished == 3


def with_bias(step, forbidden, bias, ids, state):
    logits, state = step(ids, state)
    return logits.index_add(1, forbidden, torch.full((len(logits), len(forbidden)), bias, dtype=logits.dtype)), state


@pytest.mark.parametrize("method", ["beam", "sampling"])
def test_the_least_and_the_greatest_length_count_alike(models, sources, method):
    search = settings(method=method, min_length=5, max_length_ratio=0.0, max_length_extra=5)
    sources = [source._replace(prefix=()) for source in sources]
    engine = TorchEngine(models[0])
    assert all(len(each.ids) + each.finished == 5 for [each] in engine.search(sources, search))
    engine.step = partial(with_bias, engine.step, torch.tensor([EOS_ID]), 30.0)
    assert all(len(each.ids) == 4 and each.finished for [each] in engine.search(sources, search))


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["beam", "sampling"])
@torch.inference_mode()
def test_pieces_that_stand_for_no_text_are_never_found_and_have_no_share_of_the_probability(
    models, sources, name, number
):
    """Whatever the model thinks of them."""
    forbidden = [*ANY.forbidden_ids, 9, 40]
    loud = [copy.deepcopy(model) for model in models[:number]]
    vocabulary = Vocabulary(tuple(forbidden))
    found = []
    for bias in (0.0, 30.0):
        engines = [TorchEngine(model, workers=1, vocabulary=vocabulary) for model in loud]
        for engine in engines:
            engine.step = partial(with_bias, engine.step, torch.tensor(forbidden), bias)
        engine = engines[0] if number == 1 else EnsembleEngine(engines)
        found.append(engine.search([source for source in sources if not source.prefix], settings(**SETTINGS[name]), 3))
    for quiet, pushed in zip(*found, strict=True):
        assert [each.ids for each in quiet] == [each.ids for each in pushed]
        assert [each.score for each in quiet] == pytest.approx([each.score for each in pushed], abs=1e-5)
        assert not any({*each.ids} & {*forbidden} for each in quiet)


def test_where_rules_leave_nothing_there_is_an_empty_unfinished_hypothesis(models, tokenizers):
    everything = [(id,) for id in range(4, tokenizers.target.vocab_size)]
    for method in ("beam", "sampling"):
        search = settings(method=method, min_length=2)
        [[hypothesis]] = TorchEngine(models[0]).search([Source((9, 10))], search, 1, everything)
        assert hypothesis == ([], -float("inf"), False)


def translator_of(models, tokenizers, number=1):
    return Translator(engine_of(models, number), tokenizers, CONFIGURATION)


def test_terms_end_where_words_end(models, tokenizers):
    """Even if the model would rather go on with every word."""
    asked = [Sentence(text, terms=(term,)) for text in SENTENCES[:2] for term in ("cat", "tree", "gard", "ca")]
    inside, apart = 0, Vocabulary.of(tokenizers.target)
    for vocabulary in (ANY, apart):
        engine = TorchEngine(models[0], workers=1, vocabulary=vocabulary)
        engine.step = partial(with_bias, engine.step, torch.tensor(sorted(apart.words.going_on)), 5.0)
        found = Translator(engine, tokenizers, CONFIGURATION).hypotheses(asked)
        for sentence, [best] in zip(asked, found, strict=True):
            if vocabulary is apart and best.finished:
                assert occurs(sentence.terms[0], best.text)
            inside += vocabulary is ANY and not occurs(sentence.terms[0], best.text)
    assert inside > 3, "else there was nothing to see"


@pytest.mark.parametrize(
    "changes, source, complaint",
    [
        ({"method": "sampling"}, Source((9,), terms=((5,),)), "terms are met by a beam search: set search.method=beam"),
        ({"diverse_groups": 2}, Source((9,), terms=((5,),)), "terms and search.diverse_groups=2 both divide the beam"),
        ({}, Source((9,), prefix=(5, UNK_ID)), r"the prefix of tokens \[5, 1\] has a character that the vocabulary"),
        ({}, Source((9,), terms=((5,), (UNK_ID,))), r"the term of tokens \[1\] has a character that the vocabulary"),
    ],
)
def test_what_cannot_be_in_a_translation_is_refused(models, changes, source, complaint):
    with pytest.raises(ValueError, match=complaint):
        TorchEngine(models[0]).search([source], settings(**changes))


@pytest.mark.parametrize(
    "changes, complaint",
    [
        (
            {"ensemble_weights": [1.0, 2.0]},
            r"search.ensemble_weights=\[1.0, 2.0\] must be as many as the models, which",
        ),
        (
            {"method": "sampling", "coverage_penalty": 0.2},
            "search.coverage_penalty=0.2 chooses among the hypotheses of",
        ),
        ({"method": "sampling", "diverse_groups": 2}, "search.diverse_groups=2 chooses among the hypotheses of a beam"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(models, changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        TorchEngine(models[0]).require(settings(**changes))


def test_settings_without_meaning_are_refused():
    with pytest.raises(ValueError, match=r"search.ensemble_weights=\[0\] must be more than 0"):
        settings(ensemble_weights=[0])
    with pytest.raises(ValueError, match=r"search.banned=\[' '\] has a phrase without a word"):
        settings(banned=[" "])


@pytest.mark.gpu
def test_a_gpu_computes_in_bfloat16_but_not_in_eight_bits(tokenizers):
    model = build_model(CONFIGURATION, tokenizers).eval().cuda()
    for precision in ("auto", "bf16"):
        engine = TorchEngine(model, precision)
        assert {each.dtype for each in engine.model.parameters()} == {torch.bfloat16}
        assert engine.search([Source((9, 10))], settings())[0][0].score < 0
    assert next(model.parameters()).dtype == torch.float32
    with pytest.raises(ValueError, match="precision=int8 is for a CPU only"):
        TorchEngine(model, "int8")
