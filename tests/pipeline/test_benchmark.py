"""The work that a benchmark counts is the work that torch does."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from models.config import ModelConfig
from models.transformer import Transformer
from pipeline.data.batching import collate
from pipeline.data.tokenizer import PAD_ID
from pipeline.training.baselines import BASELINES
from pipeline.training.benchmark import training_flops

CONFIG = ModelConfig(
    encoder_layers=3, decoder_layers=2, d_model=16, d_ff=40, num_heads=2, dropout=0.0, attention_kernel="plain"
)
WORDS = 50


def test_the_counted_work_is_the_forward_pass_three_times_without_what_the_mask_hides():
    batch = collate([([4] * 6, [5] * 8), ([6] * 6, [7] * 8)], update_tokens=18)
    model = Transformer(CONFIG, WORDS, WORDS, PAD_ID)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch.source, batch.target_in)
    length, sentences = 9, 2
    hidden_pairs = length * (length - 1) // 2
    hidden = CONFIG.decoder_layers * sentences * hidden_pairs * 2 * 2 * CONFIG.d_model
    assert training_flops(CONFIG, WORDS, batch) == 3 * (counter.get_total_flops() - hidden)


def test_padding_counts_nothing():
    short, long = ([4] * 3, [5] * 2), ([4] * 9, [5] * 12)
    together = training_flops(CONFIG, WORDS, collate([short, long], update_tokens=16))
    apart = [training_flops(CONFIG, WORDS, collate([pair], update_tokens=16)) for pair in (short, long)]
    assert together == sum(apart)


@pytest.mark.parametrize("name, norm_order", [("torch", "pre"), ("marian", "post")])
def test_a_baseline_has_our_parameters_and_a_loss_without_padding(name, norm_order):
    if name == "marian":
        pytest.importorskip("transformers")
    config = replace(CONFIG, norm_order=norm_order)
    torch.manual_seed(0)
    baseline = BASELINES[name](config, WORDS, 0.1).eval()
    ours = Transformer(config, WORDS, WORDS, PAD_ID)
    trained, expected = (sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (baseline, ours))
    assert trained == expected
    short, long = ([4] * 3, [5] * 2), ([4] * 9, [5] * 12)
    together, *apart = (
        baseline.loss_sums(collate(pairs, update_tokens=16))[0] for pairs in ([short, long], [short], [long])
    )
    torch.testing.assert_close(together, sum(apart), rtol=1e-4, atol=1e-4)
