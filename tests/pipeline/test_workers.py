"""Batches are shared fairly among the threads that translate them."""

import random
import threading
import time
from dataclasses import replace
from itertools import chain

import pytest
import torch

from pipeline.inference import engine as engine_module
from pipeline.inference.engine import Source, TorchEngine, fair_batches, token_budget_batches
from tests.pipeline.conftest import CONFIGURATION


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_workers_share_what_would_be_one_batch(models, tokenizers, workers, monkeypatch):
    sizes, names, find = [], set(), engine_module._search_batch

    def watched(decoders, sources, **options):
        sizes.append((len(sources), torch.get_num_threads()))
        names.add(threading.get_ident())
        return find(decoders, sources, **options)

    monkeypatch.setattr(engine_module, "_search_batch", watched)
    before = torch.get_num_threads()
    sources = [Source(tuple(ids)) for ids in tokenizers.source.encode(["the cat sat"] * 6)]
    TorchEngine(models[0], workers=workers).search(sources, CONFIGURATION.search)
    assert [size for size, _ in sizes] == [6 // workers] * workers
    assert workers == 1 or {threads for _, threads in sizes} == {1}
    assert torch.get_num_threads() == before
    for _ in range(3):  # also in other engines of the process
        TorchEngine(models[0], workers=workers).search(sources, CONFIGURATION.search)
    assert len(names) <= workers
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_no_batch_is_still_searched(models, tokenizers, monkeypatch, error):
    running, begun = [], []

    def failing(decoders, sources, **options):
        begun.append(sources)
        if len(begun) == 1:
            raise error("broken")
        running.append(1)
        time.sleep(0.2)
        running.pop()
        return [[] for _ in sources]

    monkeypatch.setattr(engine_module, "_search_batch", failing)
    sources = [Source(tuple(ids)) for ids in tokenizers.source.encode(["the cat sat"] * 20)]
    search = replace(CONFIGURATION.search, tokens_per_batch=1)
    with pytest.raises(error, match="broken"):
        TorchEngine(models[0], workers=2).search(sources, search)
    assert not running and len(begun) < 20
    before = len(begun)
    time.sleep(0.5)
    assert len(begun) == before


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_no_worker_waits_for_the_others_to_end_much_larger_batches(workers):
    draw = random.Random(workers)
    mixed = 0
    for budget in 1, 40, 300, 5000:
        for spread in 1, 30, 30, 30:
            lengths = sorted((draw.randint(1, spread) for _ in range(draw.randint(1, 200))), reverse=True)
            batches = fair_batches(lengths, budget, workers)
            assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
            assert all(len(batch) * lengths[batch[0]] <= budget or len(batch) == 1 for batch in batches)
            # As few rounds as the budget allows, and no smaller budget has as few.
            rounds = [-(-len(token_budget_batches(lengths, each)) // workers) for each in range(1, budget + 1)]
            assert -(-len(batches) // workers) == rounds[-1]
            least = 1 + rounds.index(rounds[-1])
            alone = token_budget_batches(lengths, least)
            if batches != alone:
                mixed += 1
                assert batches[:-workers] == alone[:-workers]
                sizes = [len(batch) for batch in batches[-workers:]]
                assert max(sizes) - min(sizes) <= 1
    assert (mixed > 0) == (workers > 1)
    assert fair_batches([], 5, workers) == []


def test_a_long_sentence_is_not_mixed_with_many_short_ones():
    batches = fair_batches([100] + [10] * 50, 4096, 2)
    assert batches == [range(0, 4), range(4, 51)]  # dealt out, both would be as wide as the long one
