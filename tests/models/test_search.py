"""Search over small written-out probability tables: what ends it, what it returns, what it refuses."""

import math

import pytest
import torch

from models.rules import MinLength
from models.search import beam_search
from tests.models.tables import BOS, EOS, LETTERS, PAD, SPECIAL, WORDS, Tables, average


def search(*tables, max_length, beam_size, **options):
    """[[(text, score), ...] for every table]; an unfinished hypothesis has no final dot."""
    start = Tables(*tables)
    options = {"length": average(options.pop("length_penalty", 0.0)), **options}
    if min_length := options.pop("min_length", 0):
        options["rules"] = [MinLength(min_length, EOS)]
    limits = torch.tensor(max_length if isinstance(max_length, list) else [max_length] * len(tables), dtype=torch.long)
    found = beam_search(start.step, start, limits, beam_size=beam_size, **{**SPECIAL, **options})
    return [[("".join(WORDS[i] for i in h.ids) + "." * h.finished, h.score) for h in hs] for hs in found]


def close(*pairs):
    return [(text, pytest.approx(score, abs=5e-5)) for text, score in pairs]


SHORT = {
    "": {"k": 0.8, "j": 0.2},
    "k": {".": 0.9, "j": 0.1},
    "j": {".": 0.5, "k": 0.5},
    "kj": {"l": 0.99, ".": 0.01},
    "kjl": {"l": 0.99, ".": 0.01},
    "*": {"l": 0.9, ".": 0.1},
}
LONG = {
    "": {"p": 0.9, "q": 0.1},
    "p": {"q": 0.9, ".": 0.1},
    "pq": {"r": 0.9, ".": 0.1},
    "pqr": {"s": 0.9, ".": 0.1},
    "pqrs": {"t": 0.9, ".": 0.1},
    "pqrst": {"u": 0.9, ".": 0.1},
    "pqrstu": {"v": 0.9, ".": 0.1},
    "pqrstuv": {".": 0.99, "w": 0.01},
    "*": {".": 0.6, "w": 0.4},
}
TEMPTING = {  # the shortest hypothesis has the highest probability, the longest the highest per token
    "": {"a": 0.52, "b": 0.48},
    "a": {".": 0.42, "x": 0.29, "y": 0.29},
    "b": {"c": 0.9, ".": 0.1},
    "bc": {"d": 0.9, ".": 0.1},
    "bcd": {"e": 0.9, ".": 0.1},
    "bcde": {".": 0.55, "f": 0.45},
    "*": {".": 0.3, "z": 0.35, "w": 0.35},
}
FLAT = {
    "": {"a": 0.5, "b": 0.3, "c": 0.2},
    "a": {".": 0.5, "b": 0.3, "c": 0.2},
    "b": {".": 0.6, "a": 0.4},
    "c": {".": 0.7, "a": 0.3},
    "ab": {".": 0.8, "c": 0.2},
    "ac": {".": 0.8, "b": 0.2},
    "*": {".": 0.9, "a": 0.1},
}
GARDEN_PATH = {"": {"a": 0.6, "b": 0.4}, "a": {"c": 0.4, "d": 0.35, ".": 0.25}, "b": {".": 0.95, "c": 0.05}}
GARDEN_PATH["*"] = {".": 0.9, "c": 0.1}
ENDLESS = {"*": {"a": 0.9, "b": 0.1}}


@pytest.mark.parametrize("penalty, k, j, long", [(0.0, -0.3285, -2.3026, -0.7476), (1.0, -0.1643, -1.1513, -0.0934)])
@pytest.mark.parametrize("batch", ["S", "L", "SL", "LS", "SSL", "LSLS"])
def test_a_sentence_does_not_depend_on_its_batch(batch, penalty, k, j, long):
    tables = [{"S": SHORT, "L": LONG}[name] for name in batch]
    options = {"max_length": 9, "beam_size": 2, "length_penalty": penalty, "num_hypotheses": 2}
    for name, found in zip(batch, search(*tables, **options), strict=True):
        if name == "S":
            assert found == close(("k.", k), ("j.", j))
        else:
            assert found[:1] == close(("pqrstuv.", long))
            assert found == search(LONG, **options)[0]


@pytest.mark.parametrize("eos_id", [2, 5])
@pytest.mark.parametrize("beam_size", [1, 2, 3])
def test_an_end_as_good_as_the_last_that_counts_counts_whatever_its_number(eos_id, beam_size):
    class Forgetful:
        def select(self, rows):
            return self

    def step(ids, state):
        logits = torch.full((len(ids), 6), -math.inf)
        logits[:, [3, 4, eos_id]] = 0.0
        return logits, state

    options = SPECIAL | {"eos_id": eos_id, "beam_size": beam_size}
    [[best]] = beam_search(step, Forgetful(), torch.tensor([4]), **options)
    assert best == ([], pytest.approx(math.log(1 / 3)), True)


def test_a_finished_sentence_leaves_the_batch():
    start = Tables(SHORT, LONG)
    beam_search(start.step, start, torch.tensor([9, 9]), beam_size=2, **SPECIAL)
    assert start.steps == [2, 4, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "penalty, best",
    [(0.0, ("a.", -1.5214)), (1.0, ("bcde.", -0.3296)), (2.0, ("bcde.", -0.0659)), (-1.0, ("a.", -3.0429))],
)
def test_a_higher_length_penalty_favours_longer_output(penalty, best):
    [found] = search(TEMPTING, max_length=6, beam_size=4, length_penalty=penalty)
    assert found == close(best)


def test_a_better_hypothesis_that_ends_late_is_waited_for():
    late = {"": {".": 0.7, "b": 0.3}, "bbbbb": {".": 1.0}, "*": {"b": 1.0}}
    [found] = search(late, max_length=9, beam_size=2, length_penalty=1.0)
    assert found == close(("bbbbb.", math.log(0.3) / 6))
    assert search(late, max_length=9, beam_size=2) == [close((".", math.log(0.7)))]


def test_one_beam_may_hand_on_all_that_live():
    crowded = {"": {"a": 0.9, "b": 0.1}, "a": {".": 0.35, "c": 0.4, "d": 0.25}, "ad": {"d": 1.0}, "add": {"d": 1.0}}
    crowded |= {"addd": {".": 1.0}, "*": {".": 0.5, "z": 0.5}}
    assert search(crowded, max_length=9, beam_size=2, length_penalty=1.0) == [close(("addd.", math.log(0.225) / 5))]


def test_the_n_best_list_begins_with_the_best():
    for table, limit in ((FLAT, 5), (TEMPTING, 6)):
        for penalty in (-1.0, 0.0, 1.0):
            lists = [
                search(table, max_length=limit, beam_size=4, length_penalty=penalty, num_hypotheses=n)[0]
                for n in (1, 2, 4)
            ]
            assert lists[0] == lists[2][:1] and lists[1] == lists[2][:2]
            assert all(text.endswith(".") for text, _ in lists[2])
            assert [score for _, score in lists[2]] == sorted((score for _, score in lists[2]), reverse=True)
    [found] = search(FLAT, max_length=5, beam_size=4, num_hypotheses=4)
    assert found == close(("a.", -1.3863), ("b.", -1.7148), ("c.", -1.9661), ("ab.", -2.1203))


def test_one_beam_does_not_end_where_the_end_is_not_the_best_token():
    assert search(GARDEN_PATH, max_length=4, beam_size=1) == [close(("ac.", -1.5325))]
    assert search(GARDEN_PATH, max_length=4, beam_size=2) == [close(("b.", -0.9676))]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_an_endless_hypothesis_is_returned_whole_and_unfinished(beam_size):
    assert search(ENDLESS, max_length=6, beam_size=beam_size) == [close(("aaaaaa", -0.6322))]
    assert search(ENDLESS, max_length=1, beam_size=beam_size) == [close(("a", -0.1054))]


def test_an_unfinished_hypothesis_is_returned_only_where_none_has_finished():
    reluctant = {"*": {"a": 0.9, ".": 0.1}}
    assert search(reluctant, max_length=3, beam_size=2, num_hypotheses=2) == [
        close((".", math.log(0.1)), ("a.", math.log(0.09)))
    ]
    assert search(reluctant, max_length=3, beam_size=1) == [close(("aaa", 3 * math.log(0.9)))]


def test_every_sentence_has_its_own_limit():
    for beam_size in (1, 2):
        found = search(ENDLESS, ENDLESS, LONG, max_length=[2, 5, 9], beam_size=beam_size)
        assert [hypotheses[0][0] for hypotheses in found] == ["aa", "aaaaa", "pqrstuv."]


@pytest.mark.parametrize("beam_size", [1, 2])
def test_min_length_keeps_the_end_away(beam_size):
    [[(text, _)]] = search(SHORT, max_length=9, beam_size=beam_size, min_length=3)
    assert len(text) >= 3
    eager = {"*": {".": 0.6, "a": 0.4}}
    [[(text, _)]] = search(eager, max_length=4, beam_size=beam_size, min_length=4)
    assert text == "aaa.", "both lengths count the end"
    [[(text, _)]] = search(SHORT, max_length=5, beam_size=beam_size, min_length=6)
    assert len(text) == 5 and "." not in text
    assert search(SHORT, max_length=9, beam_size=beam_size, min_length=2) == [close(("k.", -0.3285))]
    # Where the end is the likeliest first token, it is put off, and the others keep their probability.
    assert search({"*": {".": 0.6, "a": 0.3, "b": 0.1}}, max_length=2, beam_size=beam_size, min_length=2) == [
        close(("a.", math.log(0.3 * 0.6)))
    ]


class Nothing:
    """The state of a step that remembers nothing."""

    def select(self, rows):
        return self


def constant_step(logits):
    return lambda ids, state: (logits.repeat(len(ids), 1), state)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_forbidden_tokens_are_removed_before_the_softmax(beam_size):
    tag = LETTERS["t"]
    logits = torch.zeros(len(WORDS))
    logits[LETTERS["b"]] = 1.0
    logits[[PAD, BOS, tag]] = 50.0
    options = {"beam_size": beam_size, "bos_id": BOS, "eos_id": EOS, "forbidden_ids": (PAD, BOS, tag)}

    def step(ids, state):
        return logits.repeat(len(ids), 1), state

    [[hypothesis]] = beam_search(step, Nothing(), torch.tensor([3]), rules=[MinLength(3, EOS)], **options)
    assert hypothesis.ids == [LETTERS["b"]] * 3
    assert hypothesis.score == pytest.approx(3 * (1 - math.log(math.e + 25)), rel=1e-6)  # 25 letters and the end


@pytest.mark.parametrize("beam_size", [1, 2])
def test_half_precision_logits_are_scored_in_float32(beam_size):
    logits = torch.tensor([0, 0, -9.0, 1.0, 0.5], dtype=torch.bfloat16)
    [[hypothesis]] = beam_search(
        constant_step(logits),
        Nothing(),
        torch.tensor([50]),
        beam_size=beam_size,
        length=average(1.0),
        rules=[MinLength(50, EOS)],
        **SPECIAL,
    )
    assert hypothesis.ids == [3] * 50 and not hypothesis.finished
    assert hypothesis.score == pytest.approx(-math.log1p(math.exp(-0.5) + math.exp(-10)), rel=1e-6)


def test_an_empty_batch_gives_an_empty_list():
    for beam_size in (1, 2):
        assert search(max_length=[], beam_size=beam_size) == []


@pytest.mark.parametrize("beam_size", [1, 2])
def test_impossible_lengths_are_refused(beam_size):
    with pytest.raises(ValueError, match="max_length=0 leaves no room"):
        search(SHORT, LONG, max_length=[3, 0], beam_size=beam_size)


@pytest.mark.parametrize("num_hypotheses", [0, 3])
def test_an_n_best_list_wider_than_the_beam_is_refused(num_hypotheses):
    with pytest.raises(ValueError, match=f"num_hypotheses={num_hypotheses} must lie between 1 and beam_size=2"):
        search(SHORT, max_length=5, beam_size=2, num_hypotheses=num_hypotheses)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_nan_is_an_error_not_a_translation(beam_size):
    broken = {"*": {"a": math.nan}}
    with pytest.raises(ValueError, match="the model returned NaN"):
        search(broken, max_length=5, beam_size=beam_size)
