import time
from collections import Counter

import numpy as np
import pytest
import torch

from pipeline.data.batching import BatchPlan, TokenBudgetSampler, collate, pad_sources
from pipeline.data.reading import num_reads
from pipeline.data.tokenizer import BOS_ID, EOS_ID, PAD_ID


def lengths(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of the two sides as in real text: alike, long-tailed."""
    random = np.random.default_rng(seed)
    source = random.gamma(4, 4, num_rows).astype(int) + 1
    return source, np.maximum(1, source + random.normal(0, 0.2 * source).astype(int))


def epoch(sides, tokens_per_batch=200, seed=1, **settings):
    return [
        (rows.tolist(), tokens) for rows, tokens, _ in TokenBudgetSampler(*sides, tokens_per_batch, seed, **settings)
    ]


def rows_of(batches):
    return [row for rows, _ in batches for row in rows]


def test_the_shift_happens_in_collate():
    batch = collate([([10, 11], [20, 21, 22]), ([12], [23])], update_tokens=6.0)
    assert batch.source.tolist() == [[10, 11, EOS_ID], [12, EOS_ID, PAD_ID]]
    assert batch.target_in.tolist() == [[BOS_ID, 20, 21, 22], [BOS_ID, 23, PAD_ID, PAD_ID]]
    assert batch.target_out.tolist() == [[20, 21, 22, EOS_ID], [23, EOS_ID, PAD_ID, PAD_ID]]
    assert batch.update_tokens == 6.0
    assert batch.source.dtype == batch.target_in.dtype == batch.target_out.dtype == torch.int64


def test_an_empty_sentence_is_eos_alone():
    assert pad_sources([[], [5]]).tolist() == [[EOS_ID, PAD_ID], [5, EOS_ID]]


def test_lists_and_arrays_collate_alike():
    pairs = [([10, 11], [20]), ([12], [])]
    arrays = [tuple(np.array(side, dtype=np.int32) for side in pair) for pair in pairs]
    assert all(torch.equal(a, b) for a, b in zip(collate(pairs, 1.0)[:3], collate(arrays, 1.0)[:3], strict=True))


@pytest.mark.parametrize("budget", [60, 200, 1000])
def test_no_batch_exceeds_the_budget_padding_included(budget):
    source, target = lengths(2000)
    for rows, _ in epoch((source, target), budget):
        longest = max(source[rows].max(), target[rows].max()) + 1
        assert len(rows) * longest <= budget or len(rows) == 1


def test_padding_is_little_on_both_sides():
    source, target = lengths(30_000)
    assert BatchPlan(source, target, 1024).padding_share < 0.05
    assert BatchPlan(source, target, 4096).padding_share < 0.1


def test_the_padding_share_is_what_collated_batches_hold():
    source, target = lengths(300)
    batches = [
        collate([([5] * source[row], [5] * target[row]) for row in rows], 1.0)
        for rows in BatchPlan(source, target, 150).batches()[0]
    ]
    held = torch.cat([side.flatten() for batch in batches for side in (batch.source, batch.target_out)])
    assert BatchPlan(source, target, 150).padding_share == pytest.approx((held == PAD_ID).double().mean().item())


def test_a_row_beyond_the_budget_is_a_batch_of_its_own():
    source, target = np.array([5, 300, 5, 6, 5]), np.array([5, 280, 6, 5, 5])
    assert [1] in [rows for rows, _ in epoch((source, target), 100)]
    assert sorted(rows_of(epoch((source, target), 100))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("num_rows", [8, 11, 61, 500])
def test_ranks_get_equally_many_batches_and_every_row_once(world_size, accumulate, num_rows):
    source, target = lengths(num_rows)
    source[-1] = 300
    shares = [
        epoch((source, target), rank=rank, world_size=world_size, accumulate=accumulate) for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    assert sorted(row for share in shares for row in rows_of(share)) == list(range(num_rows))
    assert all(rows for share in shares for rows, _ in share)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 2, 5])
def test_update_tokens_are_the_target_tokens_of_the_whole_update(world_size, accumulate):
    sides = lengths(203)
    shares = [epoch(sides, rank=rank, world_size=world_size, accumulate=accumulate) for rank in range(world_size)]
    for start in range(0, len(shares[0]), accumulate):
        update = [batch for share in shares for batch in share[start : start + accumulate]]
        assert {tokens for _, tokens in update} == {float((sides[1][rows_of(update)] + 1).sum())}


def test_two_ranks_train_like_one_that_accumulates_twice_as_much():
    sides = lengths(777)
    alone = epoch(sides, accumulate=4)
    shares = [epoch(sides, rank=rank, world_size=2, accumulate=2) for rank in range(2)]
    together = [batch for pair in zip(*shares, strict=True) for batch in pair]
    assert together == alone


def test_the_plan_depends_on_seed_and_epoch_alone():
    sides = lengths(500)
    assert epoch(sides) == epoch(sides)
    assert epoch(sides) != epoch(sides, seed=2)
    assert epoch(sides, epoch=1) != epoch(sides, epoch=0)
    assert len({len(epoch(sides, epoch=number)) for number in range(5)}) == 1
    np.random.seed(0)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    epoch(sides)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_the_place_of_a_batch_is_its_own_and_the_same_for_any_number_of_ranks():
    sides = lengths(500)
    alone = {each.place: each.rows.tolist() for each in TokenBudgetSampler(*sides, 200, 1, epoch=3, accumulate=2)}
    shared = [
        each for rank in range(2) for each in TokenBudgetSampler(*sides, 200, 1, epoch=3, rank=rank, world_size=2)
    ]
    assert {each.place: each.rows.tolist() for each in shared} == alone
    assert {place[:2] for place in alone} == {(1, 3)}


def test_start_skips_batches_and_keeps_the_length():
    sides = lengths(500)
    for world_size in (1, 2):
        settings = {"epoch": 3, "rank": world_size - 1, "world_size": world_size}
        whole = epoch(sides, **settings)
        assert epoch(sides, start=7, **settings) == whole[7:]
        assert len(TokenBudgetSampler(*sides, 200, 1, start=7, **settings)) == len(whole)


def test_a_new_epoch_starts_at_its_beginning_and_a_resumed_one_where_it_was():
    sampler = TokenBudgetSampler(*lengths(500), 200, seed=1, epoch=2, start=5)
    whole = epoch(lengths(500), epoch=2)
    sampler.set_epoch(2)
    assert [each.rows.tolist() for each in sampler] == [rows for rows, _ in whole[5:]]
    sampler.set_epoch(3)
    assert [each.rows.tolist() for each in sampler] == [rows for rows, _ in epoch(lengths(500), epoch=3)]


def corpora_of(*sizes: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def test_an_epoch_reads_each_corpus_as_often_as_its_weight_says():
    sides, corpus = lengths(700), corpora_of(100, 400, 200)
    for number in range(3):
        read = Counter(rows_of(epoch(sides, epoch=number, corpus=corpus, reads=[300, 400, 60])))
        assert {read[row] for row in np.flatnonzero(corpus == 0)} == {3}
        assert {read[row] for row in np.flatnonzero(corpus == 1)} == {1}
        of_last = [read[row] for row in np.flatnonzero(corpus == 2)]
        assert (sum(of_last), max(of_last)) == (60, 1)


@pytest.mark.parametrize("reads", [60, 100, 130, 330])
def test_a_part_of_a_corpus_is_another_one_in_every_epoch_until_all_was_read_equally_often(reads):
    sides, corpus = lengths(500), corpora_of(300, 200)
    read = Counter()
    epochs = [rows_of(epoch(sides, epoch=number, corpus=corpus, reads=[300, reads])) for number in range(20)]
    for rows in epochs:
        read.update(row for row in rows if corpus[row] == 1)
        assert max(read.values()) - min(read[row] for row in np.flatnonzero(corpus == 1)) <= 1
    assert {*epochs[0]} != {*epochs[1]} or reads > 200
    assert {*read.values()} == {20 * reads // 200}


@pytest.mark.parametrize("budget", [60, 1000])
@pytest.mark.parametrize("reads", [[7, 300], [99, 1], [250, 201], [100, 300]])
def test_whatever_part_is_read_the_batches_are_equally_many_and_within_the_budget(budget, reads):
    sides, corpus = lengths(400), corpora_of(100, 300)
    settings = {"corpus": corpus, "reads": reads, "world_size": 2, "accumulate": 3}
    sampler = TokenBudgetSampler(*sides, budget, 1, **settings)
    for number in range(12):
        shares = [epoch(sides, budget, epoch=number, rank=rank, **settings) for rank in range(2)]
        assert [len(share) for share in shares] == [len(sampler)] * 2
        assert len(rows_of(shares[0]) + rows_of(shares[1])) == sum(reads)
        for rows, _ in shares[0] + shares[1]:
            longest = max(side[rows].max() for side in sides) + 1
            assert len(rows) * longest <= budget or len(rows) == 1


def test_temperature_evens_the_shares_of_corpora_and_weights_multiply_them():
    assert num_reads([100, 400], [1, 1]) == [100, 400]
    assert num_reads([100, 400], [2, 0.25]) == [200, 100]
    assert num_reads([100, 400], [1, 1], temperature=2) == [167, 333]  # 10 to 20
    assert num_reads([100, 400], [3, 1], temperature=2) == [500, 333]
    assert num_reads([100, 900], [1, 1], temperature=1e9) == [500, 500]
    assert num_reads([3, 0, 400], [0.01, 1, 1]) == [1, 0, 400]


def test_fewer_pairs_than_devices_are_refused():
    with pytest.raises(ValueError, match="3 pairs are too few for 4 devices"):
        TokenBudgetSampler(*lengths(3), 200, seed=1, world_size=4)


def test_millions_of_pairs_are_planned_in_seconds():
    sides = lengths(300_000)
    begun = time.perf_counter()
    sampler = TokenBudgetSampler(
        *sides, 4096, seed=1, accumulate=8, corpus=corpora_of(100_000, 200_000), reads=[300_000, 70_000]
    )
    next(iter(sampler))
    assert time.perf_counter() - begun < 3
