"""Batches are shared fairly among the threads that translate them."""

import random

import pytest
import torch

from pipeline.inference import engine as engine_module
from pipeline.inference.engine import Source, TorchEngine, fair_budget, token_budget_batches
from tests.pipeline.conftest import CONFIGURATION


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_all_workers_share_what_would_be_one_batch(models, tokenizers, workers, monkeypatch):
    sizes, find = [], engine_module._search_batch

    def watched(decoders, sources, **options):
        sizes.append((len(sources), torch.get_num_threads()))
        return find(decoders, sources, **options)

    monkeypatch.setattr(engine_module, "_search_batch", watched)
    before = torch.get_num_threads()
    sources = [Source(tuple(ids)) for ids in tokenizers.source.encode(["the cat sat"] * 6)]
    TorchEngine(models[0], workers=workers).search(sources, CONFIGURATION.search)
    assert [size for size, _ in sizes] == [6 // workers] * workers
    assert workers == 1 or {threads for _, threads in sizes} == {1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_no_worker_waits_for_the_others_to_end_much_larger_batches(workers):
    draw = random.Random(workers)
    for budget in 1, 40, 300, 5000:
        lengths = [draw.randint(1, 30) for _ in range(draw.randint(1, 200))]
        sources = [Source((5,) * length) for length in sorted(lengths, reverse=True)]
        least = fair_budget(sources, budget, workers)
        rounds = [-(-len(list(token_budget_batches(sources, each))) // workers) for each in range(1, budget + 1)]
        assert rounds[least - 1] == rounds[-1] and rounds[: least - 1].count(rounds[-1]) == 0
    assert fair_budget([], 5, workers) >= 1
