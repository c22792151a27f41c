"""Whatever a search may be asked for, against the list of all translations that there are.

The list is written in plain Python, with its own definition of every score and restriction. A beam as wide as the space
must find the best of it, in order; a narrow beam, or a sample, must be on it, with the score that it has there.
"""

import itertools
import math
import random
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.length import LENGTH_NORMALISATIONS
from models.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram
from models.sampling import sample
from models.search import beam_search

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 3


@dataclass(frozen=True)
class Problem:
    """A random model of a few words; a limit and a prefix of each sentence; and what is asked for."""

    seed: int
    num_words: int
    limits: tuple[int, ...]
    prefixes: tuple[tuple[int, ...], ...]
    normalisation: str = "none"
    penalty: float = 0.0
    min_length: int = 0
    ngram: int = 0
    banned: tuple[tuple[int, ...], ...] = ()
    repetition: float = 1.0
    terms: tuple[tuple[tuple[int, ...], ...], ...] = ((), ())
    """Of each sentence."""

    @property
    def words(self):
        return range(FIRST_WORD, FIRST_WORD + self.num_words)

    def logits(self, sentence, ids):
        return random_logits(FIRST_WORD + self.num_words, self.seed, sentence, *ids)


@cache
def random_logits(vocabulary, *everything_before):
    generator = random.Random(hash(everything_before))
    return [generator.gauss(0, 2) for _ in range(vocabulary)]


# What is searched


class Prefixes:
    """The sentence and the tokens of every row."""

    def __init__(self, rows):
        self.rows = rows

    def select(self, rows):
        return type(self)([self.rows[i] for i in rows.flatten().tolist()])

    def grown(self, tokens):
        """What the step is asked about, and the state after it."""
        grown = [(sentence, (*said, token)) for (sentence, said), token in zip(self.rows, tokens, strict=True)]
        return grown, type(self)(grown)


class SparingPrefixes(Prefixes):
    asked = None

    def only(self, asked):
        state = SparingPrefixes(self.rows)
        state.asked = asked.tolist()
        return state

    def grown(self, tokens):
        if self.asked is None:
            return super().grown(tokens)
        assert 0 < len(self.asked) < len(self.rows)
        grown, _ = Prefixes([self.rows[i] for i in self.asked]).grown(tokens)
        rows = [grown[0]] * len(self.rows)  # who is not asked about says what another one does
        for row, prefix in zip(self.asked, grown, strict=True):
            rows[row] = prefix
        return grown, SparingPrefixes(rows)


def options(problem, sentences=None, kind=None):
    """The arguments of a search, for these sentences only."""
    sentences = range(len(problem.limits)) if sentences is None else sentences
    kind = kind or (Prefixes, SparingPrefixes)[problem.seed % 2]

    def step(ids, state):
        grown, state = state.grown(ids[:, 0].tolist())
        return torch.tensor([problem.logits(s, said[1:]) for s, said in grown]), state

    rules = [MinLength(problem.min_length, EOS), BannedPhrases(problem.banned)]
    rules += [NoRepeatNgram(problem.ngram)] if problem.ngram else []
    return {
        "step": step,
        "state": kind([(sentence, ()) for sentence in sentences]),
        "max_lengths": torch.tensor([problem.limits[sentence] for sentence in sentences]),
        "bos_id": BOS,
        "eos_id": EOS,
        "forbidden_ids": (PAD, BOS),
        "length": LENGTH_NORMALISATIONS[problem.normalisation](problem.penalty),
        "repetition": problem.repetition,
        "rules": [ForcedPrefix([problem.prefixes[sentence] for sentence in sentences], rules)],
    }


def wanted(problem, sentences=None):
    """What only a beam search may be asked for."""
    sentences = range(len(problem.limits)) if sentences is None else sentences
    return {"terms": [problem.terms[sentence] for sentence in sentences]}


# What there is


def log_prob(problem, sentence, ids):
    total = 0.0
    for position, token in enumerate(ids):
        said = ids[:position]
        logits = problem.logits(sentence, said)
        for other in set(said):
            logits = list(logits)
            logits[other] = (
                logits[other] * problem.repetition if logits[other] < 0 else logits[other] / problem.repetition
            )
        total += logits[token] - math.log(sum(math.exp(x) for x in logits[EOS:]))
    return total


def worth(problem, total, length):
    return {
        "none": total,
        "average": total / length**problem.penalty,
        "gnmt": total / ((5 + length) / 6) ** problem.penalty,
        "word_reward": total + problem.penalty * length,
    }[problem.normalisation]


def is_allowed(problem, body, prefix):
    """Whether these words may be the beginning of a translation; the prefix may be anything."""
    if body[: len(prefix)] != prefix[: len(body)]:
        return False
    for end in range(len(prefix) + 1, len(body) + 1):
        if any(body[:end][-len(phrase) :] == phrase for phrase in problem.banned):
            return False
        last = body[max(0, end - problem.ngram) : end]
        if problem.ngram and any(body[i : i + problem.ngram] == last for i in range(end - problem.ngram)):
            return False
    return True


def has_terms(problem, sentence, body):
    return all(any(body[i:][: len(term)] == term for i in range(len(body))) for term in problem.terms[sentence])


def translations(problem, sentence):
    """{words: score}: all that are finished; else all of the greatest length that can be reached; and which of the
    two."""
    limit, prefix = problem.limits[sentence], problem.prefixes[sentence]
    finished, unfinished = {}, {}
    for length in range(limit + 1):
        bodies = itertools.product(problem.words, repeat=length)
        bodies = [body for body in bodies if is_allowed(problem, body, prefix)]
        if problem.min_length - 1 <= length < limit and length >= len(prefix):
            for body in bodies:
                if has_terms(problem, sentence, body):
                    finished[body] = worth(problem, log_prob(problem, sentence, (*body, EOS)), length + 1)
        if length and bodies:
            unfinished = {body: worth(problem, log_prob(problem, sentence, body), length) for body in bodies}
    if problem.limits[sentence] in map(len, unfinished):  # rather with the terms
        unfinished = {body: x for body, x in unfinished.items() if has_terms(problem, sentence, body)} or unfinished
    return (finished, True) if finished else (unfinished, False)


@st.composite
def problems(draw, with_terms=False):
    num_words = draw(st.integers(1, 3))
    words = st.integers(FIRST_WORD, FIRST_WORD + num_words - 1)
    limits = draw(st.lists(st.integers(1, 5 if num_words < 3 else 4), min_size=1, max_size=2))
    return Problem(
        seed=draw(st.integers(0, 999)),
        num_words=num_words,
        limits=tuple(limits),
        prefixes=tuple(draw(st.lists(words, max_size=2).map(tuple)) for _ in limits),
        normalisation=draw(st.sampled_from(sorted(LENGTH_NORMALISATIONS))),
        penalty=draw(st.sampled_from([-1.0, -0.3, 0.0, 0.6, 1.0, 2.0])),
        min_length=draw(st.integers(0, 4)),
        ngram=draw(st.integers(0, 3)),
        banned=tuple(draw(st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=2))),
        repetition=draw(st.sampled_from([1.0, 1.0, 1.3])),
        terms=tuple(
            draw(st.lists(st.lists(words, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)) for _ in limits
        )
        if with_terms
        else ((),) * len(limits),
    )


property_test = settings(deadline=None, derandomize=True, max_examples=150)


def plain(seed, normalisation, penalty):
    return Problem(seed, num_words=2, limits=(5,), prefixes=((),), normalisation=normalisation, penalty=penalty)


@property_test
@given(problems(), st.integers(1, 6))
@example(Problem(seed=1, num_words=3, limits=(1,), prefixes=((),)), 1)  # room for one token
@example(Problem(seed=1, num_words=2, limits=(5,), prefixes=((),), min_length=6), 3)  # no room for an end
@example(Problem(seed=1, num_words=2, limits=(3,), prefixes=((3, 4, 3, 4),)), 2)  # no room for the prefix
@example(Problem(seed=1, num_words=2, limits=(4,), prefixes=((3, 3, 3),), ngram=1, banned=((3,),)), 3)
@example(Problem(seed=1, num_words=1, limits=(3, 4), prefixes=((), ()), banned=((3,),), min_length=2), 2)  # nothing
@example(plain(38, "average", 1.0), 1)  # the best ends late: a search that hopes too little misses it
@example(plain(5, "word_reward", 1.0), 1)
@example(plain(17, "average", -1.0), 1)
@example(plain(40, "gnmt", -1.0), 1)
@example(plain(2, "word_reward", -1.0), 1)
def test_a_beam_as_wide_as_the_space_finds_the_best_there_is(problem, num_hypotheses):
    check_against_the_list(problem, num_hypotheses)


@property_test
@given(problems(with_terms=True), st.integers(1, 6))
def test_a_beam_as_wide_as_the_space_finds_the_best_there_is_with_its_terms(problem, num_hypotheses):
    check_against_the_list(problem, num_hypotheses, **wanted(problem))


def check_against_the_list(problem, num_hypotheses, **asked):
    beam_size = 2 * problem.num_words ** max(problem.limits) + num_hypotheses
    lists = beam_search(**options(problem), **asked, beam_size=beam_size, num_hypotheses=num_hypotheses)
    for sentence, found in enumerate(lists):
        expected, finished = translations(problem, sentence)
        assert len(found) == len({tuple(h.ids) for h in found}) == min(num_hypotheses, len(expected))
        best = sorted(expected.values(), reverse=True)[: len(found)]
        assert [h.score for h in found] == pytest.approx(best, rel=1e-5, abs=1e-5)
        for h in found:
            assert h.finished == finished
            assert h.score == pytest.approx(expected[tuple(h.ids)], rel=1e-5, abs=1e-5)


def is_on_the_list(problem, sentence, h):
    """Not all that is unfinished is on it: a search or a sample may lead to where nothing ends."""
    prefix, limit = problem.prefixes[sentence], problem.limits[sentence]
    body, ids = tuple(h.ids), (*h.ids, *[EOS] * h.finished)
    expected = worth(problem, log_prob(problem, sentence, ids), len(ids))
    ends_well = len(body) >= max(problem.min_length - 1, len(prefix)) and len(ids) <= limit
    return (
        is_allowed(problem, body, prefix)
        and (ends_well if h.finished else len(body) <= limit)
        and h.score == pytest.approx(expected, rel=1e-5, abs=1e-5)
    )


@property_test
@given(problems(), st.integers(1, 4), st.data())
def test_what_a_narrow_beam_finds_is_allowed_and_has_the_score_of_forced_decoding(problem, beam_size, data):
    num_hypotheses = data.draw(st.integers(1, beam_size))
    lists = beam_search(**options(problem), beam_size=beam_size, num_hypotheses=num_hypotheses)
    for sentence, found in enumerate(lists):
        assert bool(found) == bool(translations(problem, sentence)[0])
        assert len({tuple(h.ids) for h in found}) == len(found) <= num_hypotheses
        assert len({h.finished for h in found}) <= 1
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        assert all(is_on_the_list(problem, sentence, h) for h in found)


@property_test
@given(problems(), st.integers(1, 4))
def test_batch_mates_their_order_and_longer_lists_change_nothing(problem, beam_size):
    lists = beam_search(**options(problem), beam_size=beam_size, num_hypotheses=beam_size)
    backwards = range(len(lists))[::-1]
    reversed_lists = beam_search(**options(problem, backwards), beam_size=beam_size, num_hypotheses=beam_size)
    assert reversed_lists[::-1] == lists
    for sentence, found in enumerate(lists):
        assert beam_search(**options(problem, [sentence]), beam_size=beam_size) == [found[:1]]


@property_test
@given(problems(with_terms=True), st.integers(1, 4))
def test_terms_do_not_matter_to_sentences_that_have_none(problem, beam_size):
    lists = beam_search(**options(problem), **wanted(problem), beam_size=beam_size)
    plain_lists = beam_search(**options(problem), beam_size=beam_size)
    for sentence, terms in enumerate(problem.terms):
        if terms:
            asked = options(problem, [sentence]) | wanted(problem, [sentence])
            assert lists[sentence] == beam_search(**asked, beam_size=beam_size)[0]
            for h in lists[sentence]:
                assert is_on_the_list(problem, sentence, h)
                assert not h.finished or has_terms(problem, sentence, tuple(h.ids))
        else:
            assert lists[sentence] == plain_lists[sentence]


@property_test
@given(problems(), st.integers(2, 5))
def test_looking_rarely_whether_a_sentence_is_done_changes_nothing(problem, check_every):
    lists = [beam_search(**options(problem), beam_size=2, check_every=every) for every in (1, check_every)]
    assert lists[0] == lists[1]


@property_test
@given(
    st.integers(0, 999),
    st.sampled_from(sorted(LENGTH_NORMALISATIONS)),
    st.sampled_from([-0.3, 0.6, 1.0]),
    st.integers(2, 5),
    st.integers(1, 3),
)
def test_not_asking_about_who_cannot_win_changes_nothing(seed, normalisation, penalty, beam_size, check_every):
    problem = Problem(seed, 5, (9, 7, 3), ((),) * 3, normalisation, penalty)
    for num_hypotheses in 1, 2:
        wanted = {"beam_size": beam_size, "num_hypotheses": num_hypotheses}
        plain = beam_search(**options(problem, kind=Prefixes), **wanted)
        assert beam_search(**options(problem, kind=SparingPrefixes), check_every=check_every, **wanted) == plain


@property_test
@given(problems(), st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 3), st.sampled_from([0.5, 1.0]))
def test_samples_are_allowed_and_have_the_score_of_forced_decoding(problem, temperature, top_k, top_p):
    shape = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    seeds = [problem.seed + sentence for sentence in range(len(problem.limits))]
    for sentence, found in enumerate(sample(**options(problem), num_hypotheses=4, seeds=seeds, **shape)):
        assert len(found) <= 4
        for h in found:
            assert is_on_the_list(problem, sentence, h)
            assert h.finished or len(h.ids) == problem.limits[sentence]
