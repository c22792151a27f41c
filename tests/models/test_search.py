"""Search over small written-out probability tables, and over random ones against brute force."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch

from models.config import ModelConfig
from models.length import LENGTH_NORMALISATIONS
from models.rules import MinLength
from models.search import beam_search, score_targets
from models.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2
WORDS = ["<pad>", "<bos>", "<eos>", *"abcdefghijklmnopqrstuvwxyz"]
FORBIDDEN = {"forbidden_ids": (PAD, BOS)}
SPECIAL = {"bos_id": BOS, "eos_id": EOS, **FORBIDDEN}
average = LENGTH_NORMALISATIONS["average"]
LETTERS = {letter: WORDS.index(letter) for letter in "abcdefghijklmnopqrstuvwxyz"} | {".": EOS}


class Tables:
    """A step function for a batch of tables {prefix: {letter: probability}}, "." ends, "*" is any other prefix.

    The state is the prefix of every row, so a wrongly selected row changes what follows.
    """

    def __init__(self, *tables):
        self.tables, self.prefixes = tables, None
        self.owners = list(range(len(tables)))
        self.steps = []

    def step(self, ids, state):
        assert ids.shape == (len(state.owners), 1)
        previous = state.prefixes or [""] * len(state.owners)
        state.prefixes = [p + (WORDS[i] if i != BOS else "") for p, i in zip(previous, ids[:, 0].tolist(), strict=True)]
        state.steps.append(len(state.owners))
        return torch.stack([self.row(o, p) for o, p in zip(state.owners, state.prefixes, strict=True)]), state

    def row(self, owner, prefix):
        table = self.tables[owner]
        logits = torch.full((len(WORDS),), -math.inf)
        for letter, probability in table.get(prefix, table["*"]).items():
            logits[LETTERS[letter]] = math.log(probability)
        return logits

    def select(self, rows):
        chosen = Tables(*self.tables)
        chosen.steps = self.steps
        chosen.owners = [self.owners[i] for i in rows.flatten().tolist()]
        chosen.prefixes = [self.prefixes[i] for i in rows.flatten().tolist()]
        assert all(len({self.owners[i] for i in sentence}) == 1 for sentence in rows.tolist())
        return chosen


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


@pytest.mark.parametrize("beam_size", [1, 3])
def test_looking_less_often_at_what_is_done_changes_nothing(beam_size):
    step, start, _ = random_step(vocabulary=9, seed=6)
    limits = torch.tensor([12, 3, 7, 1, 9, 12, 5, 2])
    options = SPECIAL | {"beam_size": beam_size, "length": average(1.0), "num_hypotheses": beam_size}
    always = beam_search(step, start(8), limits, **options)
    for check_every in (2, 5, 100):
        assert beam_search(step, start(8), limits, check_every=check_every, **options) == always


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


def random_step(vocabulary, seed):
    """A model whose next-token logits are a random function of the whole prefix; the state is the prefixes."""
    table = torch.randn(7919, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.double)

    class Prefixes:
        def __init__(self, ids):
            self.ids = ids

        def select(self, rows):
            return Prefixes(self.ids[rows.flatten()])

    def logits(ids):
        code = torch.zeros(len(ids), dtype=torch.long)
        for column in ids.T:
            code = (code * 31 + column + 1) % len(table)
        return 1.5 * table[code]

    def step(ids, state):
        state = Prefixes(torch.cat([state.ids, ids], 1))
        return logits(state.ids), state

    # Sentences differ by an invisible first token.
    return step, lambda sentences: Prefixes(torch.arange(sentences)[:, None] + 100), logits


def enumerate_all(logits, sentence, longest, penalty, vocabulary):
    """Every finished hypothesis of 3, ... vocabulary - 1 with its score, best first."""
    found = []
    for count in range(longest):
        for body in itertools.product(range(3, vocabulary), repeat=count):
            prefix, total = [100 + sentence, BOS], 0.0
            for token in (*body, EOS):
                row = logits(torch.tensor([prefix]))[0]
                total += (row[token] - row[2:].logsumexp(0)).item()
                prefix.append(token)
            found.append((list(body), total / (count + 1) ** penalty))
    return sorted(found, key=lambda pair: -pair[1])


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_the_space_equals_brute_force(penalty):
    step, start, logits = random_step(vocabulary=6, seed=1)
    limits = torch.tensor([4, 2, 3])
    options = SPECIAL | {"length": average(penalty)}
    found = beam_search(step, start(3), limits, beam_size=40, num_hypotheses=10, **options)
    for sentence, limit in enumerate(limits.tolist()):
        expected = enumerate_all(logits, sentence, limit, penalty, vocabulary=6)[:10]
        assert [h.ids for h in found[sentence]] == [ids for ids, _ in expected]
        assert [h.score for h in found[sentence]] == pytest.approx([score for _, score in expected], rel=1e-5)


def plain_beam(logits, sentence, longest, penalty, beam_size):
    """The same search for one sentence, in lists: it runs to the limit and stops for no bound."""
    live, finished, stopped = [([100 + sentence, BOS], 0.0)], [], []
    for length in range(1, longest + 1):
        candidates = []
        for prefix, total in live:
            row = logits(torch.tensor([prefix]))[0]
            row = row - row[2:].logsumexp(0)
            candidates += [([*prefix, token], total + row[token].item()) for token in range(2, len(row))]
        candidates.sort(key=lambda pair: -pair[1])
        ended = [(prefix, total) for prefix, total in candidates[:beam_size] if prefix[-1] == EOS]
        live = [(prefix, total) for prefix, total in candidates if prefix[-1] != EOS][:beam_size]
        finished += [(prefix[2:], total / length**penalty) for prefix, total in ended]
        stopped = [(prefix[2:], total / length**penalty) for prefix, total in live]
    return sorted(finished or stopped, key=lambda pair: -pair[1])


@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0, 3.0])
def test_stopping_early_never_changes_the_result(penalty):
    step, start, logits = random_step(vocabulary=9, seed=2)
    limits = torch.tensor([12, 3, 7, 1, 9, 12, 5, 2])
    found = beam_search(step, start(8), limits, beam_size=3, num_hypotheses=3, length=average(penalty), **SPECIAL)
    for sentence, limit in enumerate(limits.tolist()):
        expected = plain_beam(logits, sentence, limit, penalty, beam_size=3)[:3]
        assert [h.ids + [EOS] * h.finished for h in found[sentence]] == [ids for ids, _ in expected]
        assert [h.score for h in found[sentence]] == pytest.approx([score for _, score in expected], rel=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_one_beam_is_the_argmax_loop(penalty):
    step, start, logits = random_step(vocabulary=9, seed=3)
    options = SPECIAL | {"length": average(penalty)}
    found = beam_search(step, start(50), torch.full((50,), 15), beam_size=1, **options)
    for sentence, [hypothesis] in enumerate(found):
        prefix, total = [100 + sentence, BOS], 0.0
        while prefix[-1] != EOS and len(prefix) < 17:
            row = logits(torch.tensor([prefix]))[0, 2:].log_softmax(0)
            total += row.max().item()
            prefix.append(row.argmax().item() + 2)
        assert hypothesis.ids + [EOS] * hypothesis.finished == prefix[2:]
        assert hypothesis.score == pytest.approx(total / len(prefix[2:]) ** penalty, rel=1e-5)


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("penalty, min_length", [(0.0, 0), (1.0, 0), (-1.0, 2)])
def test_a_returned_score_is_the_score_of_the_forced_target(beam_size, penalty, min_length):
    step, start, logits = random_step(vocabulary=9, seed=4)
    options = FORBIDDEN | {"length": average(penalty)}
    limits, rules = torch.tensor([9, 9, 3, 2, 9, 9]), [MinLength(min_length, EOS)]
    found = beam_search(step, start(6), limits, beam_size=beam_size, bos_id=BOS, eos_id=EOS, rules=rules, **options)
    targets = [h.ids + [EOS] * h.finished for [h] in found]
    width = max(map(len, targets))
    target_out = torch.tensor([target + [PAD] * (width - len(target)) for target in targets])
    prefixes = torch.cat([torch.arange(6)[:, None] + 100, torch.full((6, 1), BOS), target_out[:, :-1]], 1)
    full = torch.stack([logits(prefixes[:, : t + 2]) for t in range(width)], 1)
    forced = score_targets(full, target_out, pad_id=PAD, **options)
    assert forced.tolist() == pytest.approx([h.score for [h] in found], rel=1e-5)


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


class Prefixes(NamedTuple):
    """The state of a search without a cache: the source and the target so far of every row."""

    source: torch.Tensor
    target: torch.Tensor

    def select(self, rows):
        return Prefixes(self.source[rows.flatten()], self.target[rows.flatten()])


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_a_cached_search_equals_one_that_reads_the_whole_prefix_at_every_step(beam_size):
    torch.manual_seed(5)
    config = ModelConfig(encoder_layers=1, decoder_layers=2, d_model=16, d_ff=32, num_heads=2)
    model = Transformer(config, 12, 12, pad_id=PAD).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    lengths = [i % 9 + 1 for i in range(20)]
    source = torch.randint(3, 12, (20, 9)).masked_fill(torch.arange(9) >= torch.tensor(lengths)[:, None], PAD)
    limits = torch.tensor([2 * length + 1 for length in lengths])
    options = FORBIDDEN | {"length": average(0.6)}

    def search(step, state):
        return beam_search(step, state, limits, beam_size=beam_size, bos_id=BOS, eos_id=EOS, **options)

    def reread(ids, state):
        state = state._replace(target=torch.cat([state.target, ids], 1))
        return model(state.source, state.target)[:, -1], state

    found = search(model.step, model.start(model.encode(source)))
    slow = search(reread, Prefixes(source, source[:, :0]))
    assert [h.ids for [h] in found] == [h.ids for [h] in slow]
    assert [h.score for [h] in found] == pytest.approx([h.score for [h] in slow], rel=1e-6)
    assert len({len(h.ids) for [h] in found}) > 4, "sentences leave at different times"

    for [hypothesis], ids in zip(found, source, strict=True):
        target = torch.tensor([[BOS, *hypothesis.ids] + [EOS] * hypothesis.finished])
        forced = score_targets(model(ids[None], target[:, :-1]), target[:, 1:], pad_id=PAD, **options)
        assert forced.item() == pytest.approx(hypothesis.score, rel=1e-6)
