"""A tree of hypotheses, and their paths, are a cache with a row for each of them: whatever the search selects, however
long it goes on."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from models.beam_attention import GROWTH, Ancestry, BeamTree, Slots
from models.compiled_attention import Target
from models.config import ModelConfig
from models.transformer import Transformer

TINY = ModelConfig(encoder_layers=1, decoder_layers=2, d_model=8, d_ff=16, num_heads=2)


@pytest.mark.parametrize("kind, dtype, tolerance", [(BeamTree, torch.float64, 1e-12), (Target, torch.float32, 1e-5)])
@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}, {"positions": "alibi"}, {"num_key_value_heads": 1}])
def test_it_is_the_plain_cache_far_beyond_its_first_room(changes, kind, dtype, tolerance):
    torch.manual_seed(0)
    tree = Transformer(replace(TINY, **changes), 13, 13, 0).to(dtype).eval()
    plain = Transformer(replace(TINY, **changes, attention_kernel="plain"), 13, 13, 0).to(dtype).eval()
    plain.load_state_dict(tree.state_dict())
    source = torch.tensor([[4, 5, 6, 3], [8, 9, 3, 0], [10, 3, 0, 0]])
    beams, going = 3, 3
    with torch.inference_mode():
        states = [model.start(model.encode(source)) for model in (tree, plain)]
        rows = torch.arange(3)[:, None].expand(-1, beams)
        for step in range(2 * GROWTH + 5):
            ids = torch.randint(1, 13, (going * (beams if step else 1), 2 if step == 7 else 1))
            (ours, first), (expected, second) = (m.step(ids, s) for m, s in zip((tree, plain), states, strict=True))
            assert isinstance(first.past[0], kind) and not isinstance(second.past[0], kind)
            assert_close(ours, expected, atol=tolerance, rtol=tolerance)
            kept = torch.arange(going) if step not in (4, 20) else torch.arange(1, going)
            rows = kept[:, None] * (beams if step else 1) + torch.randint(beams if step else 1, (len(kept), beams))
            states, going = [state.select(rows) for state in (first, second)], len(kept)


def test_every_hypothesis_descends_from_its_parents_slots_and_its_own():
    first, _ = Ancestry.nothing(torch.zeros(1, 1)).grown(1).selected(torch.tensor([[0, 0, 0]]))
    ancestry = first.grown(1).selected(torch.tensor([[0, 0, 2]]))[0].grown(1)
    visible = (ancestry.hidden == 0).int().tolist()
    assert visible == [[[1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]]]
    assert ancestry.positions.tolist() == [[0, 1, 1, 1, 2, 2, 2]]


def test_the_first_to_append_has_the_place_and_any_other_a_copy():
    start = Slots(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    one, two = torch.ones(1, 1, 1, 2), 2 * torch.ones(1, 1, 1, 2)
    grown = start.append(1, one, one)
    first, second = grown.append(2, one, one), grown.append(2, two, two)
    assert first is grown and second is not grown
    assert first.keys[0, 0, :3, 0].tolist() == [0, 1, 1] and second.keys[0, 0, :3, 0].tolist() == [0, 1, 2]
