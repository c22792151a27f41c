"""A search returns what slow and plain code finds: lists of everything, a loop, a model without a cache."""

import itertools

import pytest
import torch

from models.config import ModelConfig
from models.rules import MinLength
from models.search import beam_search, score_targets
from models.transformer import Transformer
from tests.models.tables import BOS, EOS, FORBIDDEN, PAD, SPECIAL, average, random_step, rereading


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


@pytest.mark.parametrize("beam_size", [1, 3])
def test_looking_less_often_at_what_is_done_changes_nothing(beam_size):
    step, start, _ = random_step(vocabulary=9, seed=6)
    limits = torch.tensor([12, 3, 7, 1, 9, 12, 5, 2])
    options = SPECIAL | {"beam_size": beam_size, "length": average(1.0), "num_hypotheses": beam_size}
    always = beam_search(step, start(8), limits, **options)
    for check_every in (2, 5, 100):
        assert beam_search(step, start(8), limits, check_every=check_every, **options) == always


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

    found = search(model.step, model.start(model.encode(source)))
    slow = search(*rereading(model, source))
    assert [h.ids for [h] in found] == [h.ids for [h] in slow]
    assert [h.score for [h] in found] == pytest.approx([h.score for [h] in slow], rel=1e-6)
    assert len({len(h.ids) for [h] in found}) > 4, "sentences leave at different times"

    for [hypothesis], ids in zip(found, source, strict=True):
        target = torch.tensor([[BOS, *hypothesis.ids] + [EOS] * hypothesis.finished])
        forced = score_targets(model(ids[None], target[:, :-1]), target[:, 1:], pad_id=PAD, **options)
        assert forced.item() == pytest.approx(hypothesis.score, rel=1e-6)
