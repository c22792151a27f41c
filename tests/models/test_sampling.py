"""Sampling against the distributions it draws from, and what a sample may depend on."""

import math
from collections import Counter

import pytest
import torch

from models.config import ModelConfig
from models.length import LENGTH_NORMALISATIONS
from models.rules import BannedPhrases, ForcedPrefix, MinLength, NoRepeatNgram, repetition_penalty
from models.sampling import draw, most_probable, sample, uniform
from models.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2
VOCABULARY = 7
PLAIN = LENGTH_NORMALISATIONS["none"](0.0)
OPTIONS = {"bos_id": BOS, "eos_id": EOS, "forbidden_ids": (PAD, BOS), "length": PLAIN}


def random_step(seed=0):
    """A model whose logits are a random function of the whole prefix, which begins with the number of the sentence."""
    table = 1.5 * torch.randn(7919, VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.double)

    class Prefixes:
        def __init__(self, ids):
            self.ids = ids

        def select(self, rows):
            assert (self.ids[rows][:, :, 0] == self.ids[rows][:, :1, 0]).all(), "rows of a sentence stay together"
            return Prefixes(self.ids[rows.flatten()])

    def logits(ids):
        code = torch.zeros(len(ids), dtype=torch.long)
        for column in ids.T:
            code = (code * 31 + column + 1) % len(table)
        return table[code]

    def step(ids, state):
        rows_seen.append(len(ids))
        state = Prefixes(torch.cat([state.ids, ids], 1))
        return logits(state.ids), state

    rows_seen = []
    return step, lambda sentences: Prefixes(torch.tensor(sentences, dtype=torch.long)[:, None] + 100), logits, rows_seen


def log_probs_of(logits, sentence, ids, finished, repetition=1.0):
    """Forced decoding: the log-probability of these tokens, one by one."""
    prefix, total = [100 + sentence, BOS], 0.0
    for token in [*ids, *[EOS] * finished]:
        row = logits(torch.tensor([prefix]))
        row = repetition_penalty(row, torch.tensor([prefix[2:]], dtype=torch.long), repetition)[0, EOS:].log_softmax(0)
        total += row[token - EOS].item()
        prefix.append(token)
    return total


def draw_samples(sentences, limits, seeds, num_hypotheses, **options):
    step, start, _, _ = random_step()
    options = {**OPTIONS, **options}
    return sample(
        step,
        start(sentences),
        torch.tensor(limits, dtype=torch.long),
        seeds=seeds,
        num_hypotheses=num_hypotheses,
        **options,
    )


def test_samples_are_as_frequent_as_they_are_probable():
    """Against every sequence there is, by the chi-squared statistic."""
    _, _, logits, _ = random_step()
    count = 20000
    [found] = draw_samples([0], [3], [5], count)
    assert len(found) == count
    observed = Counter((tuple(h.ids), h.finished) for h in found)
    words = range(EOS + 1, VOCABULARY)
    every = [((), True)] + [((a,), True) for a in words] + [((a, b), True) for a in words for b in words]
    every += [((a, b, c), False) for a in words for b in words for c in words]
    expected = {key: count * math.exp(log_probs_of(logits, 0, *key)) for key in every}
    assert sum(expected.values()) == pytest.approx(count)
    assert set(observed) <= set(expected)
    statistic = sum((observed[key] - n) ** 2 / n for key, n in expected.items())
    degrees = len(expected) - 1
    assert abs(statistic - degrees) < 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize(
    "temperature, top_k, top_p", [(0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 2, 1.0), (1.0, 0, 0.7), (0.7, 4, 0.9)]
)
def test_first_tokens_follow_the_shaped_distribution(temperature, top_k, top_p):
    _, _, logits, _ = random_step()
    row = [math.exp(x / temperature) for x in logits(torch.tensor([[100, BOS]]))[0, EOS:].tolist()]
    shaped = sorted(((p / sum(row), token) for token, p in enumerate(row, EOS)), reverse=True)[: top_k or None]
    total = sum(p for p, _ in shaped)
    kept, mass = [], 0.0
    for p, token in shaped:
        if mass < top_p:
            kept.append((p / total, token))
            mass += p / total
    count = 20000
    [found] = draw_samples([0], [1], [1], count, temperature=temperature, top_k=top_k, top_p=top_p)
    observed = Counter(h.ids[0] if h.ids else EOS for h in found)
    assert set(observed) <= {token for _, token in kept}
    for p, token in kept:
        p /= sum(p for p, _ in kept)
        assert abs(observed[token] / count - p) < 4 * math.sqrt(p * (1 - p) / count)


def test_top_p_keeps_the_token_that_crosses_it():
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()
    for top_p, kept in [(0.3, 1), (0.5001, 2), (0.74, 2), (0.76, 3), (0.95, 4), (1.0, 4)]:
        assert (most_probable(logits, 0, top_p) > -math.inf).sum() == kept
    # Of the three best, which have 0.9 of the probability, the best has 0.56.
    assert (most_probable(logits, 3, 0.55) > -math.inf).tolist() == [[True, False, False, False]]
    assert (most_probable(logits.flip(1), 2, 1.0) > -math.inf).tolist() == [[False, False, True, True]]
    assert most_probable(logits, 4, 1.0) is logits and most_probable(logits, 99, 1.0) is logits


def test_equal_tokens_are_kept_in_the_number_asked_for():
    assert (most_probable(torch.zeros(1, 10), 3, 1.0) > -math.inf).sum() == 3
    assert (most_probable(torch.zeros(1, 10), 0, 0.25) > -math.inf).sum() == 3


def test_a_draw_inverts_the_distribution_function():
    logits = torch.tensor([[0.0, 0.5, 0.3, 0.0, 0.2, 0.0]]).log()
    for number, token in [(0.0, 1), (0.499, 1), (0.501, 2), (0.799, 2), (0.801, 4), (1 - 2**-53, 4)]:
        assert draw(logits, torch.tensor([number], dtype=torch.double)).tolist() == [token]


def test_numbers_are_uniform_and_independent():
    seeds, samples = torch.arange(100)[:, None], torch.arange(40)[None]
    numbers = torch.stack([uniform(seeds, samples, position) for position in range(25)])
    assert numbers.min() >= 0 and numbers.max() < 1 and len(numbers.unique()) == numbers.numel()
    deviations = (numbers - 0.5) * math.sqrt(12)
    spread = 4 / math.sqrt(numbers.numel())
    assert abs(deviations.mean()) < spread and abs((deviations**2).mean() - 1) < spread
    for axis in range(3):
        assert abs((deviations * deviations.roll(1, axis)).mean()) < spread
    for axis in range(3):
        means = deviations.mean([other for other in range(3) if other != axis])
        assert means.abs().max() < 4.5 / math.sqrt(numbers.numel() / len(means))


def test_extreme_seeds_are_seeds():
    seeds = torch.tensor([[-1], [0], [1], [2**63 - 1], [-(2**63)]])
    assert len(uniform(seeds, torch.arange(2)[None], 0).unique()) == 10


def test_batch_mates_and_their_order_change_nothing():
    sentences, limits, seeds = [0, 1, 2, 3], [8, 3, 5, 8], [11, 12, 11, 13]
    together = draw_samples(sentences, limits, seeds, 5)
    for i in range(4):
        assert draw_samples([i], [limits[i]], [seeds[i]], 5) == [together[i]]
    order = [2, 0, 3, 1]
    assert draw_samples(order, *([x[i] for i in order] for x in (limits, seeds)), 5) == [together[i] for i in order]


def test_more_samples_are_the_same_ones_and_others():
    [few], [many] = draw_samples([0], [8], [3], 4), draw_samples([0], [8], [3], 9)
    assert not Counter((tuple(h.ids), h.score) for h in few) - Counter((tuple(h.ids), h.score) for h in many)


def test_a_longer_limit_only_lets_samples_end():
    [short], [long] = draw_samples([0], [3], [3], 20), draw_samples([0], [9], [3], 20)
    assert Counter(tuple(h.ids[:3]) for h in long) == Counter(tuple(h.ids) for h in short)
    assert any(not h.finished for h in short)


def test_the_seed_decides():
    assert draw_samples([0], [8], [3], 4) == draw_samples([0], [8], [3], 4) != draw_samples([0], [8], [4], 4)


@pytest.mark.parametrize("name, penalty", [("average", 1.0), ("gnmt", 0.6), ("none", 0.0), ("word_reward", 0.3)])
def test_scores_are_those_of_forced_decoding_whatever_shapes_the_draw(name, penalty):
    _, _, logits, _ = random_step()
    length = LENGTH_NORMALISATIONS[name](penalty)
    found = draw_samples(
        [0, 1], [6, 4], [1, 2], 12, length=length, temperature=1.7, top_k=4, top_p=0.9, rules=[MinLength(2, EOS)]
    )
    for sentence, hypotheses in enumerate(found):
        assert len(hypotheses) == 12
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            total = log_probs_of(logits, sentence, h.ids, h.finished)
            assert h.score == pytest.approx(length.worth(total, len(h.ids) + h.finished), rel=1e-5)
            assert len(h.ids) + h.finished >= 2 and h.finished == (len(h.ids) < [6, 4][sentence])


def test_the_repetition_penalty_is_part_of_the_model():
    _, _, logits, _ = random_step()
    [found] = draw_samples([0], [8], [1], 20, repetition=3.0)
    for h in found:
        assert h.score == pytest.approx(log_probs_of(logits, 0, h.ids, h.finished, 3.0), rel=1e-5)
    repeats = [sum(len(h.ids) - len(set(h.ids)) for h in hs) for hs in (found, draw_samples([0], [8], [1], 20)[0])]
    assert repeats[0] < repeats[1]


def test_rules_hold_in_every_sample():
    rules = [ForcedPrefix([(3, 3, 4), ()], [NoRepeatNgram(2), BannedPhrases([(5,), (4, 6)])])]
    with_prefix, without = draw_samples([0, 1], [9, 9], [1, 2], 30, rules=rules, temperature=4.0)
    for hypotheses in (with_prefix, without):
        assert len({tuple(h.ids) for h in hypotheses}) > 5
        for h in hypotheses:
            bigrams = list(zip(h.ids, h.ids[1:], strict=False))
            assert 5 not in h.ids and (4, 6) not in bigrams and len(set(bigrams)) == len(bigrams)
    assert all(h.ids[:3] == [3, 3, 4] for h in with_prefix)


def test_a_sample_that_rules_leave_without_a_token_is_left_out():
    """Of two words, neither of which may be said twice, and no end before three."""
    [found] = draw_samples([0], [5], [1], 10, rules=[NoRepeatNgram(1), MinLength(4, EOS), BannedPhrases([(5,), (6,)])])
    assert found == []
    mixed = [BannedPhrases([(3, word) for word in range(VOCABULARY)])]
    [found] = draw_samples([0], [5], [1], 200, rules=mixed)
    assert 0 < len(found) < 200 and all(3 not in h.ids[:-1] for h in found)


def test_samples_that_end_leave_the_batch():
    step, start, _, rows_seen = random_step()
    limits = torch.tensor([9, 2, 9])
    found = sample(step, start([0, 1, 2]), limits, num_hypotheses=8, seeds=[1, 2, 3], **OPTIONS)
    lengths = [[len(h.ids) + h.finished for h in hypotheses] for hypotheses in found]
    expected = []
    for position in range(9):
        running = [sum(n > position for n in row) for row in lengths]
        if any(running):
            expected.append(max(running) * sum(n > 0 for n in running))
    assert rows_seen == expected and expected[-1] < 24


def test_forbidden_tokens_are_removed_before_the_softmax():
    logits = torch.tensor([[50.0, 50.0, 0.0, 1.0, 0.0, 0.0, 50.0]])
    handed_out = []

    class Nothing:
        def select(self, rows):
            return self

    def step(ids, state):
        handed_out.append(logits.repeat(len(ids), 1))
        return handed_out[-1], state

    options = OPTIONS | {"forbidden_ids": (PAD, BOS, 6)}
    [found] = sample(step, Nothing(), torch.tensor([1]), num_hypotheses=50, seeds=[1], **options)
    assert {tuple(h.ids) for h in found} == {(), (3,), (4,), (5,)}
    assert found[0].ids == [3] and found[0].score == pytest.approx(1 - math.log(math.e + 3))


def test_a_cold_draw_is_the_most_probable_token():
    [found] = draw_samples([0], [6], [1], 5, temperature=1e-6)
    assert len({tuple(h.ids) for h in found}) == 1
    assert found == draw_samples([0], [6], [2], 5, top_k=1)[0] == draw_samples([0], [6], [3], 5, top_p=1e-9)[0]


def test_nan_is_an_error_not_a_translation():
    class Nothing:
        def select(self, rows):
            return self

    with pytest.raises(ValueError, match="the model returned NaN"):
        sample(
            lambda ids, state: (torch.full((len(ids), 5), math.nan), state),
            Nothing(),
            torch.tensor([3]),
            num_hypotheses=2,
            seeds=[1],
            **OPTIONS,
        )


def test_an_empty_batch_gives_an_empty_list():
    assert draw_samples([], [], [], 3) == []


def test_a_cached_model_samples_as_one_that_reads_every_prefix_again():
    torch.manual_seed(5)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=16, d_ff=32, num_heads=2)
    model = Transformer(config, 12, 12, pad_id=PAD).double().eval()
    source = torch.randint(3, 12, (6, 7))

    class Prefixes:
        def __init__(self, source, target):
            self.source, self.target = source, target

        def select(self, rows):
            return Prefixes(self.source[rows.flatten()], self.target[rows.flatten()])

    def reread(ids, state):
        state = Prefixes(state.source, torch.cat([state.target, ids], 1))
        return model(state.source, state.target)[:, -1], state

    limits, options = torch.full((6,), 12), OPTIONS | {"num_hypotheses": 4, "seeds": range(6)}
    cached = sample(model.step, model.start(model.encode(source)), limits, **options)
    slow = sample(reread, Prefixes(source, source[:, :0]), limits, **options)
    assert [[h.ids for h in row] for row in cached] == [[h.ids for h in row] for row in slow]
    assert len({len(h.ids) for row in cached for h in row}) > 4, "samples leave at different times"
    assert sample(model.step, model.start(model.encode(source[2:3])), limits[:1], **options | {"seeds": [2]})[0] == [
        h._replace(score=pytest.approx(h.score)) for h in cached[2]
    ]
