"""Decoding step by step is the full pass, row by row, whatever rows the search keeps."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from models.config import ModelConfig
from models.transformer import Transformer

TINY = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=8, d_ff=16, num_heads=2)
SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
EXACT = {"atol": 1e-12, "rtol": 1e-12}


@pytest.fixture(params=[(k, o) for k in ("plain", "fused") for o in ("pre", "post")], ids="-".join)
def model(request):
    torch.manual_seed(0)
    config = replace(TINY, attention_kernel=request.param[0], norm_order=request.param[1])
    return Transformer(config, 13, 13, 0).double().eval()


def test_a_step_is_a_row_of_the_full_pass(model):
    target_in = torch.randint(1, 13, (3, 6))
    logits = model(SOURCE, target_in)
    state = model.start(model.encode(SOURCE))
    for t in range(6):
        assert state.position == t
        stepped, state = model.step(target_in[:, t : t + 1], state)
        assert_close(stepped, logits[:, t], **EXACT)


@pytest.mark.parametrize("beams", [1, 2, 5])
def test_a_step_is_a_row_of_the_full_pass_after_any_selection(model, beams):
    """Rows are copied, crossed over and left out at random, and sentences leave the batch, the middle one first."""
    going = torch.arange(3)  # the sentences still in the batch
    state = model.start(model.encode(SOURCE)).select(going[:, None].expand(-1, beams))
    prefixes = torch.empty(3, beams, 0, dtype=torch.long)
    for step in range(8):
        tokens = torch.randint(1, 13, (len(going), beams, 1))
        prefixes = torch.cat([prefixes, tokens], dim=-1)
        logits, state = model.step(tokens.view(-1, 1), state)

        source = SOURCE[going].repeat_interleave(beams, dim=0)
        assert_close(logits, model(source, prefixes.flatten(0, 1))[:, -1], **EXACT)

        kept = torch.tensor({2: [0, 2], 5: [1]}.get(step, range(len(going))))
        chosen = torch.randint(beams, (len(kept), beams))
        state = state.select(kept[:, None] * beams + chosen)
        going, prefixes = going[kept], prefixes[kept[:, None], chosen]


def test_the_number_of_beams_may_change_with_a_selection(model):
    state = model.start(model.encode(SOURCE))
    _, state = model.step(torch.tensor([[2], [2], [2]]), state)
    state = state.select(torch.tensor([[0, 0], [2, 2]]))
    logits, _ = model.step(torch.tensor([[4], [5], [6], [7]]), state)
    expected = model(SOURCE[[0, 0, 2, 2]], torch.tensor([[2, 4], [2, 5], [2, 6], [2, 7]]))
    assert_close(logits, expected[:, -1], **EXACT)


def test_several_tokens_may_be_read_in_one_step(model):
    target_in = torch.randint(1, 13, (3, 6))
    state = model.start(model.encode(SOURCE))
    for start, end in (0, 2), (2, 5), (5, 6):
        logits, state = model.step(target_in[:, start:end], state)
        assert_close(logits, model(SOURCE, target_in)[:, end - 1], **EXACT)


def test_a_state_is_a_value_that_later_steps_leave_alone(model):
    state = model.start(model.encode(SOURCE))
    _, state = model.step(torch.tensor([[2], [2], [2]]), state)
    first, _ = model.step(torch.tensor([[4], [5], [6]]), state)
    model.step(torch.tensor([[7], [8], [9]]), state.select(torch.tensor([[2], [1], [0]])))
    again, _ = model.step(torch.tensor([[4], [5], [6]]), state)
    assert torch.equal(first, again)


def test_the_source_is_kept_once_per_sentence_and_touched_only_when_one_leaves(model):
    state = model.start(model.encode(SOURCE))
    wide = state.select(torch.tensor([[0, 0], [1, 1], [2, 2]]))
    assert wide.memory is state.memory
    _, wide = model.step(torch.full((6, 1), 2), wide)
    assert wide.select(torch.tensor([[1, 0], [2, 2], [5, 4]])).memory is state.memory
    assert wide.select(torch.tensor([[1, 0], [5, 4]])).memory[0].keys.shape == (2, 2, 5, 4)
