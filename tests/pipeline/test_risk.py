"""Minimum Bayes risk: what is chosen is what sacreBLEU, asked pair by pair, chooses."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from pipeline.inference.risk import SCORES, choose

METRICS = {"chrf": CHRF(), "bleu": BLEU(effective_order=True)}
WORDS = st.sampled_from(["the", "cat", "a", "mat,", "sat.", "x", "aaaa", "café", "猫", "  "])
TEXTS = st.lists(st.lists(WORDS, max_size=9).map(" ".join), min_size=1, max_size=6)


def pair_by_pair(texts, metric):
    return np.array([[METRICS[metric].sentence_score(text, [other]).score for other in texts] for text in texts])


@pytest.mark.parametrize("metric", METRICS)
@given(texts=TEXTS)
def test_scores_are_those_of_sacrebleu(metric, texts):
    np.testing.assert_allclose(SCORES[metric](texts, ""), pair_by_pair(texts, metric), atol=1e-9)


@pytest.mark.parametrize("metric", METRICS)
@given(texts=TEXTS)
def test_the_choice_has_the_highest_mean_against_all_others_and_is_the_first_of_those(metric, texts):
    scores = pair_by_pair(texts, metric)
    means = [sum(row[j] for j in range(len(row)) if j != i) / max(1, len(row) - 1) for i, row in enumerate(scores)]
    chosen = choose(texts, metric)
    assert means[chosen] == pytest.approx(max(means), abs=1e-8)
    assert not any(mean > means[chosen] + 1e-7 for mean in means)
    assert all(mean < means[chosen] - 1e-10 for mean in means[:chosen])


@pytest.mark.parametrize("metric", METRICS)
def test_what_was_drawn_often_counts_often(metric):
    texts = ["a cat sat on the mat", "two dogs ran in a park", "two dogs ran in the park", "the cat sat on the mat"]
    assert choose([*texts, texts[1], texts[1]], metric) == 1
    assert choose([*texts, texts[0], texts[0]], metric) == 0


@pytest.mark.parametrize("metric", METRICS)
def test_of_equals_the_first_is_chosen_and_an_empty_one_never_before_others(metric):
    assert choose(["a cat"], metric) == choose(["", ""], metric) == choose(["same one", "same one"], metric) == 0
    assert choose(["", "the cat sat", "", "the cat sat on"], metric) in (1, 3)


def test_bleu_tells_words_by_the_language():
    texts = ["他来了", "他来吧", "他走吧"]
    assert SCORES["bleu"](texts, "")[0, 1] == 0 < SCORES["bleu"](texts, "zh")[0, 1]
    assert choose(texts, "bleu", "zh") == 1


@pytest.mark.parametrize("metric", METRICS)
def test_many_candidates_are_compared_fast(metric):
    random = np.random.default_rng(1)
    texts = [" ".join(random.choice(["old", "trees", "in", "a", "garden", "seen"], 20)) for _ in range(32)]
    start = time.perf_counter()
    choose(texts, metric)
    assert time.perf_counter() - start < 1
    assert choose(["a" * 2000, "a" * 1000], metric) == 0
