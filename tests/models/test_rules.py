"""Rules against the sentence that defines them, checked row by row in plain Python."""

import math

import pytest
import torch

from models.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram, repetition_penalty

EOS = 0
VOCABULARY = 6


def rows(num_rows, length, seed=0, words=VOCABULARY - 1):
    """Random log-probabilities and random words, 1 to ``words``; every three rows are of another sentence."""
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(num_rows, VOCABULARY, generator=generator, dtype=torch.double).log_softmax(-1)
    ids = torch.randint(1, words + 1, (num_rows, length), generator=generator)
    return log_probs, ids, torch.arange(num_rows) // 3


def forbidden(rule, log_probs, ids, sentences):
    """What the rule forbids in every row, after a look that it changes nothing else."""
    ruled = log_probs.clone()
    assert rule(ruled, ids, sentences) is None
    assert ((ruled == log_probs) | (ruled == -math.inf)).all(), "a rule changes no score"
    return [{i for i, log_prob in enumerate(row) if log_prob == -math.inf} for row in ruled.tolist()]


def test_no_end_before_min_length_is_reached_with_it():
    for length in range(5):
        expected = {EOS} if length < 2 else set()
        assert forbidden(MinLength(3, EOS), *rows(2, length)) == [expected] * 2


def has_repeat(ids, n):
    ngrams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 12])
def test_no_ngram_occurs_twice(n, length):
    log_probs, ids, sentences = rows(60, length, words=5 if n == 1 else 2)
    found = forbidden(NoRepeatNgram(n), log_probs, ids, sentences)
    for row, tokens in zip(ids.tolist(), found, strict=True):
        starts = [row[i : i + n - 1] for i in range(length - n + 1)]
        assert tokens == {row[i + n - 1] for i, start in enumerate(starts) if start == row[length - n + 1 :]}
        if not has_repeat(row, n):
            assert tokens == {token for token in range(1, VOCABULARY) if has_repeat([*row, token], n)}
    assert not any(EOS in tokens for tokens in found)
    assert any(found) == (length >= n)


def test_no_ngram_occurs_twice_written_out():
    ids = torch.tensor([[3, 4, 5, 3, 4], [3, 3, 3, 3, 3], [1, 2, 3, 4, 5]])
    log_probs, sentences = torch.zeros(3, VOCABULARY), torch.zeros(3, dtype=torch.long)
    assert forbidden(NoRepeatNgram(3), log_probs, ids, sentences) == [{5}, {3}, set()]
    assert forbidden(NoRepeatNgram(2), log_probs, ids, sentences) == [{5}, {3}, set()]
    assert forbidden(NoRepeatNgram(1), log_probs, ids, sentences) == [{3, 4, 5}, {3}, {1, 2, 3, 4, 5}]


PHRASES = [(5,), (1, 2), (2, 2), (3, 1, 2), (4, 4, 4, 4), (3, 3)]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7])
def test_no_banned_phrase_occurs(length):
    log_probs, ids, sentences = rows(2000, length)
    found = forbidden(BannedPhrases(PHRASES), log_probs, ids, sentences)
    for row, tokens in zip(ids.tolist(), found, strict=True):
        endings = [tuple([*row, token][-len(phrase) :]) == phrase for token in range(VOCABULARY) for phrase in PHRASES]
        assert tokens == {i // len(PHRASES) for i, ends in enumerate(endings) if ends}
    assert set().union(*found) == [{5}, {2, 3, 5}, {2, 3, 5}, {2, 3, 4, 5}, {2, 3, 4, 5}][min(length, 4)]


def test_a_word_is_banned_in_every_way_it_can_be_cut():
    whole, cut = (5,), (3, 4)
    ids = torch.tensor([[1, 3], [3, 1]])
    log_probs, sentences = torch.zeros(2, VOCABULARY), torch.zeros(2, dtype=torch.long)
    assert forbidden(BannedPhrases([whole, cut]), log_probs, ids, sentences) == [{4, 5}, {5}]


def test_nothing_banned_forbids_nothing():
    assert forbidden(BannedPhrases([]), *rows(2, 3)) == [set()] * 2


def test_an_empty_phrase_is_refused():
    with pytest.raises(ValueError, match="a banned phrase has no tokens"):
        BannedPhrases([(3,), ()])


def test_a_translation_begins_with_the_prefix_of_its_sentence():
    rule = ForcedPrefix([(3, 4), (), (5,)])
    everything = set(range(VOCABULARY))
    for length, asked in enumerate([[3, None, 5], [4, None, None], [None, None, None]]):
        log_probs, ids, sentences = rows(9, length)
        order = torch.randperm(9, generator=torch.Generator().manual_seed(length))
        found = forbidden(rule, log_probs, ids, sentences[order])
        for sentence, tokens in zip(sentences[order].tolist(), found, strict=True):
            assert tokens == (set() if asked[sentence] is None else everything - {asked[sentence]})


def test_sentences_that_have_left_the_batch_are_not_confused():
    log_probs, ids, _ = rows(2, 0)
    assert forbidden(ForcedPrefix([(1,), (2,), (3,)]), log_probs, ids, torch.tensor([2, 2])) == [{0, 1, 2, 4, 5}] * 2


def test_a_prefix_is_given_even_where_other_rules_forbid_it():
    """They hold after it, and for sentences without one."""
    rule = ForcedPrefix([(3, 3), ()], [NoRepeatNgram(1), BannedPhrases([(0,), (4,)])])
    log_probs, sentences = torch.zeros(2, VOCABULARY), torch.tensor([0, 1])
    assert forbidden(rule, log_probs, torch.tensor([[3], [3]]), sentences) == [{0, 1, 2, 4, 5}, {0, 3, 4}]
    assert forbidden(rule, log_probs, torch.tensor([[3, 3], [3, 1]]), sentences) == [{0, 3, 4}, {0, 1, 3, 4}]


def test_no_prefix_forces_nothing():
    assert forbidden(ForcedPrefix([(), ()]), *rows(6, 2)) == [set()] * 6


@pytest.mark.parametrize(
    "rule", [NoRepeatNgram(2), BannedPhrases(PHRASES), ForcedPrefix([(1, 2, 3, 4)]), MinLength(9, 0)]
)
def test_a_row_does_not_depend_on_other_rows(rule):
    log_probs, ids, _ = rows(20, 3, seed=1)
    sentences = torch.zeros(20, dtype=torch.long)
    together = forbidden(rule, log_probs, ids, sentences)
    alone = [forbidden(rule, log_probs[[i]], ids[[i]], sentences[[i]])[0] for i in range(20)]
    assert together == alone


def test_a_row_in_which_nothing_is_left_stays_dead():
    dead = torch.full((1, VOCABULARY), -math.inf)
    for rule in (NoRepeatNgram(1), BannedPhrases(PHRASES), ForcedPrefix([(2, 2, 2)]), MinLength(9, 0)):
        assert forbidden(rule, dead, torch.tensor([[1, 2]]), torch.tensor([0])) == [set(range(VOCABULARY))]


def test_rules_work_in_half_precision():
    log_probs = torch.zeros(1, VOCABULARY, dtype=torch.bfloat16)
    for rule in (NoRepeatNgram(1), BannedPhrases(PHRASES), ForcedPrefix([(2, 2, 2)]), MinLength(9, 0)):
        assert forbidden(rule, log_probs, torch.tensor([[1, 2]]), torch.tensor([0]))[0]


def test_repetition_penalty_is_the_formula_of_ctrl():
    logits = torch.tensor([[2.0, -1.0, 0.5, 4.0, -math.inf, 0.0]] * 2)
    kept = logits.clone()
    penalised = repetition_penalty(logits, torch.tensor([[1, 3, 3, 4], [0, 0, 0, 5]]), 2.0)
    assert penalised.tolist() == [[2.0, -2.0, 0.5, 2.0, -math.inf, 0.0], [1.0, -1.0, 0.5, 4.0, -math.inf, 0.0]]
    assert (logits == kept).all(), "a step's own tensor is left as it was"


def test_nothing_is_penalised_where_nothing_has_been_said():
    logits = torch.randn(3, VOCABULARY)
    assert (repetition_penalty(logits, torch.zeros(3, 0, dtype=torch.long), 2.0) == logits).all()
    assert (repetition_penalty(logits, torch.ones(3, 4, dtype=torch.long), 1.0) == logits).all()
