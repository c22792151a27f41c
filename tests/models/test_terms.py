"""Terms: what counts as met, and that hypotheses with few of them do not crowd out those with many."""

import itertools
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.terms import APART, Progress, Words, choose, contains

EOS = 0
property_test = settings(deadline=None, derandomize=True, max_examples=150)
words = st.integers(1, 3)
terms = st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3)


def walk(terms, ids, words=APART):
    progress = Progress.start(terms)
    for token in ids:
        progress = progress.after(token, words)
    return progress


def ends_a_word(ids, term, words):
    """The plain definition of what is met."""
    ends = [end for end in range(len(term), len(ids) + 1) if tuple(ids[end - len(term) : end]) == tuple(term)]
    return any(end == len(ids) or not words.joins(ids[end - 1], ids[end]) for end in ends)


@property_test
@given(terms, st.lists(words, max_size=9))
def test_a_term_is_met_where_it_occurs_in_one_piece(terms, ids):
    text = "".join(map(str, ids))
    expected = {term for term in terms if "".join(map(str, term)) not in text}
    assert walk(terms, ids).unmet == expected
    assert {term for term in terms if not contains(ids, term)} == expected


@property_test
@given(terms, st.lists(words, max_size=9), st.sets(words), st.sets(words))
def test_a_term_is_met_where_its_last_word_ends(terms, ids, ending_within, going_on):
    its_words = Words(ending_within, going_on)
    progress = walk(terms, ids, its_words)
    assert progress.unmet == {term for term in terms if not ends_a_word(ids, term, its_words)}
    assert all(tuple(ids[-len(term) :]) == term for term in progress.said)


def test_a_term_is_unmet_again_if_its_word_goes_on():
    """ "▁G aul", and then "er"."""
    its_words, term = Words({1, 2, 3}, {2, 3}), (1, 2)
    assert not walk([term], [1, 2], its_words).unmet
    assert walk([term], [1, 2, 3], its_words) == ({term}, (), frozenset())
    assert walk([term], [1, 2, 3], its_words).need == 2
    assert not walk([term], [1, 2, 3, 1, 2], its_words).unmet
    assert not walk([term], [1, 2, 1, 3], its_words).unmet, "another word is nothing to it"


@property_test
@given(terms, st.lists(words, max_size=6))
def test_what_is_wanted_brings_on_and_the_need_is_enough(terms, ids):
    progress = walk(terms, ids)
    while progress.unmet:
        assert progress.wanted, "there is always a way on"
        for token in progress.wanted:
            assert progress.after(token).need < progress.need
        progress = progress.after(min(progress.wanted))
    assert progress.need == 0 and not progress.wanted and not progress.begun


@pytest.mark.parametrize(
    "terms, ids",
    [
        ([(1, 2), (2, 3)], [1, 2, 3]),  # overlap
        ([(1, 2, 3), (2,)], [1, 2, 3]),  # one within the other
        ([(1, 2), (1, 3)], [1, 2, 1, 3]),  # the same beginning
        ([(1, 1, 2)], [1, 1, 1, 2]),  # a false start that is a right one
        ([(1, 2), (1, 2)], [1, 2]),  # twice
        ([(1, 2, 1, 3)], [1, 2, 1, 2, 1, 3]),
    ],
)
def test_terms_that_get_into_each_others_way_are_met(terms, ids):
    assert not walk(terms, ids).unmet
    assert walk(terms, ids[:-1]).unmet


def test_a_begun_term_is_begun_again_when_it_breaks_off():
    assert walk([(1, 2, 1, 3)], [1, 2, 1, 2]).begun == (1, 2)
    assert walk([(1, 2, 3), (2, 4)], [1, 2]) == (frozenset({(1, 2, 3), (2, 4)}), (1, 2), frozenset())
    assert walk([(1, 2, 3), (2, 4)], [1, 2, 4]) == (frozenset({(1, 2, 3)}), (), frozenset({(2, 4)}))


def random_log_probs(vocabulary, seed):
    """The next token's log-probabilities as a random function of the whole prefix."""
    table = (1.5 * torch.randn(7919, vocabulary, generator=torch.Generator().manual_seed(seed))).log_softmax(-1)

    @cache
    def code_row(ids):
        code = 0
        for token in ids:
            code = (code * 31 + token + 1) % len(table)
        return table[code]

    return lambda ids: code_row(tuple(ids))


def search(row, terms, limit, beam_size, with_stopped=False, words=APART):
    """The plainest search over ``choose``: [(total, ids)] of what has ended, best first, and of what lives on."""
    histories, totals, progress, found = [[]], torch.zeros(1), [Progress.start(terms)], []
    for position in range(1, limit + 1):
        log_probs = torch.stack([row(ids) for ids in histories])
        options = {"eos_id": EOS, "beam_size": beam_size, "room": limit - position, "width": beam_size, "words": words}
        (ended, parents, tokens), living, progress = choose(progress, totals, log_probs, **options)
        assert all(len(x) == beam_size for x in (ended, parents, tokens, *living, progress))
        assert all(token == EOS for token in tokens.tolist())
        endings = zip(ended.tolist(), parents.tolist(), strict=True)
        found += [(total, histories[parent]) for total, parent in endings if total > -math.inf]
        totals, parents, tokens = living
        histories = [histories[i] + [token] for i, token in zip(parents.tolist(), tokens.tolist(), strict=True)]
        for ids, total, each in zip(histories, totals.tolist(), progress, strict=True):
            assert total == -math.inf or each == walk(terms, ids, words)
    stopped = [(total, ids) for total, ids in zip(totals.tolist(), histories, strict=True) if total > -math.inf]
    return (sorted(found, reverse=True), stopped) if with_stopped else sorted(found, reverse=True)


def enumerate_all(row, terms, limit, vocabulary, words=APART):
    found = []
    for length in range(limit):
        for ids in itertools.product(range(1, vocabulary), repeat=length):
            if all(ends_a_word(ids, term, words) for term in terms):
                steps = enumerate([*ids, EOS])
                found.append((sum(row(ids[:i])[token].item() for i, token in steps), list(ids)))
    return sorted(found, reverse=True)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=3), max_size=3),
    st.integers(0, 99),
    st.sampled_from([APART, Words({1, 2}, {2}), Words({2}, {1, 2})]),
)
def test_a_beam_as_wide_as_the_space_is_exact(terms, seed, words):
    row = random_log_probs(3, seed)
    terms = [tuple(term) for term in terms]
    found, expected = search(row, terms, 6, 96, words=words), enumerate_all(row, terms, 6, 3, words)
    assert [ids for _, ids in found] == [ids for _, ids in expected]
    assert [total for total, _ in found] == pytest.approx([total for total, _ in expected], rel=1e-5)


@property_test
@given(terms, st.integers(1, 4), st.integers(0, 3), st.integers(0, 99), st.booleans())
def test_terms_that_fit_below_the_limit_are_always_met(terms, beam_size, slack, seed, in_words):
    """In what ends, and in what the limit stops."""
    words = Words(range(1, 6), {4, 5}) if in_words else APART  # terms begin words
    limit = sum(map(len, set(terms))) + 1 + slack
    row = random_log_probs(6, seed)
    found, stopped = search(row, terms, limit, beam_size, with_stopped=True, words=words)
    assert stopped
    for total, ids in found:
        assert all(ends_a_word(ids, term, words) for term in terms) and len(ids) < limit
        assert total == pytest.approx(sum(row(ids[:i])[t].item() for i, t in enumerate([*ids, EOS])), rel=1e-4)
    for _, ids in stopped:
        assert all(ends_a_word(ids, term, words) for term in terms) and len(ids) == limit


def test_terms_that_do_not_fit_end_nothing():
    assert search(random_log_probs(6, 1), [(1, 2, 3)], 3, beam_size=4) == []
    assert search(random_log_probs(6, 1), [(1, 2), (2, 3)], 4, beam_size=81) != [], "unless they overlap"


def test_a_term_is_said_where_it_fits_best_and_not_where_it_comes_first():
    """ "4 5" is likely after "1 2 3" only."""

    def row(ids):
        order = [1, 2, 3, 4, 5, EOS]
        likely = order[len(ids)] if len(ids) < 6 and ids == order[: len(ids)] else EOS
        likely = 3 if ids == [1, 2] else EOS if ids == [1, 2, 3] else likely
        probabilities = torch.full((7,), 0.02)
        probabilities[4] = 0.2 if ids == [1, 2, 3] else 0.02
        probabilities[likely] = 0
        probabilities[likely] = 1 - probabilities.sum()
        return probabilities.log()

    [(_, best), *_] = search(row, [(4, 5)], 12, beam_size=6)
    assert best == [1, 2, 3, 4, 5]
    assert search(row, [], 12, beam_size=6)[0][1] == [1, 2, 3]


def plain_beam(row, limit, beam_size):
    live, found = [(0.0, [])], []
    for _ in range(limit):
        grown = [(total + x, [*ids, token]) for total, ids in live for token, x in enumerate(row(ids).tolist())]
        grown.sort(reverse=True)
        found += [(total, ids[:-1]) for total, ids in grown[:beam_size] if ids[-1] == EOS]
        live = [each for each in grown if each[1][-1] != EOS][:beam_size]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_without_terms_it_is_the_plain_beam(beam_size):
    for seed in range(5):
        row = random_log_probs(6, seed)
        found, expected = search(row, [], 7, beam_size), plain_beam(row, 7, beam_size)
        assert [ids for _, ids in found] == [ids for _, ids in expected]


def test_every_bank_has_its_place():
    """Term "1 2": as many live on that need two tokens, one and none, though those with none are the least likely."""
    log_probs = torch.tensor([[0.1, 0.02, 0.02, 0.3, 0.3, 0.26]]).log().repeat(3, 1)
    progress = [walk([(1, 2)], ids) for ids in ([3], [3, 1], [1, 2])]
    totals = torch.tensor([-1.0, -5.0, -9.0])
    _, _, following = choose(progress, totals, log_probs, eos_id=EOS, beam_size=6, room=9, width=6)
    assert sorted(each.need for each in following) == [0, 0, 1, 1, 2, 2]


def test_what_is_too_late_gets_what_others_leave():
    log_probs = torch.tensor([[0.1, 0.02, 0.02, 0.86]]).log().repeat(2, 1)
    progress, totals = [Progress.start([(1, 2)])] * 2, torch.tensor([-1.0, -2.0])
    for room, tokens in [(3, [3, 1]), (2, [1, 1])]:  # two tokens and the end: room for no other, and then not even that
        options = {"eos_id": EOS, "beam_size": 2, "width": 2}
        _, (_, _, chosen), _ = choose(progress, totals, log_probs, room=room, **options)
        assert chosen.tolist() == tokens


def test_an_ending_as_good_as_the_last_that_counts_counts():
    log_probs = torch.tensor([[0.25, 0.5, 0.25]]).log()  # the end of sentence comes last of equals where ids decide
    for eos_id in (0, 2):
        options = {"beam_size": 2, "room": 5, "width": 2}
        ending, _, _ = choose([Progress.start([])], torch.zeros(1), log_probs, eos_id=eos_id, **options)
        assert ending[0].tolist() == [log_probs[0, eos_id], -math.inf]


def test_what_rules_forbid_stays_forbidden():
    log_probs = torch.tensor([[0.1, 0.0, 0.4, 0.5]]).log()
    ending, living, _ = choose(
        [Progress.start([(1,)])], torch.zeros(1), log_probs, eos_id=0, beam_size=3, room=5, width=3
    )
    assert (ending[0] == -math.inf).all() and living[2][living[0] > -math.inf].tolist() == [3, 2]


def test_an_empty_term_is_refused():
    with pytest.raises(ValueError, match="a term has no tokens"):
        Progress.start([(1, 2), ()])
