"""Sliding windows in blocks: the same attention, at a cost that grows with the length alone."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models import attention, fused_attention
from models.config import ModelConfig
from models.fused_attention import attend_by_blocks
from models.masks import Mask
from models.transformer import Transformer

PLAIN = attention.scaled_dot_product_attention
FUSED = fused_attention.scaled_dot_product_attention
EXACT = {"atol": 1e-12, "rtol": 1e-12}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TINY = ModelConfig(
    encoder_layers=2, decoder_layers=2, d_model=8, d_ff=16, num_heads=2, attention_window=3, attention_kernel="fused"
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def queries_keys_values(length, dtype=torch.double, device="cpu", batch=3, width=4):
    shape = batch, 2, length, width
    return [torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(3)]


def padding(length, device="cpu"):
    """One full sentence, one of nothing but padding, one with a hole and a padded end."""
    keys = torch.ones(3, length, dtype=torch.bool, device=device)
    keys[1] = False
    keys[2, 1:4] = keys[2, -4:] = False
    return keys


def outputs_and_gradients(attend, inputs, mask, seed, **options):
    y = attend(*inputs, mask, **options)
    return y, *torch.autograd.grad(y, inputs, seed.to(y.dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("num_global", [0, 1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_are_the_plain_formula_in_outputs_and_gradients(causal, num_global, padded, device):
    """Whatever the block is to the window and to the length."""
    for length, window, block in (12, 3, 4), (13, 3, 4), (15, 4, 2), (9, 1, 1), (10, 2, 7), (5, 2, 8), (6, 9, 2):
        inputs = queries_keys_values(length, device=device)
        mask = Mask(padding(length, device) if padded else None, causal, window, num_global)
        seed = torch.randn_like(inputs[2])
        blocks = outputs_and_gradients(attend_by_blocks, inputs, mask, seed, block=block)
        plain = outputs_and_gradients(PLAIN, inputs, mask, seed)
        for actual, expected in zip(blocks, plain, strict=True):
            assert_close(actual, expected, **EXACT)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_global", [0, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_short_floats_come_near_the_64_bit_result(causal, num_global, dtype, device):
    inputs = queries_keys_values(300, dtype, device)
    mask = Mask(padding(300, device), causal, 5, num_global)
    seed = torch.randn_like(inputs[2])
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for actual, expected in zip(
        outputs_and_gradients(FUSED, inputs, mask, seed),
        outputs_and_gradients(PLAIN, exact, mask, seed.double()),
        strict=True,
    ):
        assert actual.dtype == dtype
        # A global key's gradient is a sum over all queries.
        assert_close(actual.double(), expected, atol=16 * torch.finfo(dtype).eps * expected.abs().max().item(), rtol=0)


def test_dropout_acts_within_blocks():
    """Of the weights, which are left by half and doubled, the sum keeps its mean."""
    q, k, v = queries_keys_values(4000, batch=1)
    for mask in Mask(window=4), Mask(causal=True, window=4, num_global=2):
        sums = FUSED(q, k, torch.ones_like(v), mask, dropout=0.5)[..., 0]
        assert sums.std() > 0.1
        assert sums.mean().item() == pytest.approx(1, abs=0.03)


class LargestTensor(TorchDispatchMode):
    """The bytes of the largest memory that any operation meanwhile returns; views count as what they show part of."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor):
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return result


def growth_of_the_largest_tensor(attend, make_mask):
    """From 1,024 to 2,048 positions, forward and backward."""
    sizes = []
    for length in 1024, 2048:
        inputs = queries_keys_values(length, torch.float32, batch=1)
        mask = make_mask(length)
        with LargestTensor() as largest:
            attend(*inputs, mask).sum().backward()
        sizes.append(largest.bytes)
    return sizes[1] / sizes[0]


def some_keys(length):
    return torch.arange(length)[None] < length - 3


MASKS = {
    "nothing": lambda length: Mask(),
    "padding": lambda length: Mask(some_keys(length)),
    "causal": lambda length: Mask(causal=True),
    "window": lambda length: Mask(window=8),
    "window, padding": lambda length: Mask(some_keys(length), window=8),
    "causal window, padding, globals": lambda length: Mask(some_keys(length), True, 8, 2),
    "window, globals": lambda length: Mask(window=8, num_global=2),
}


@pytest.mark.parametrize("name", MASKS)
def test_memory_of_the_fused_kernel_grows_with_the_length_and_that_of_the_formula_with_its_square(name):
    assert growth_of_the_largest_tensor(FUSED, MASKS[name]) <= 2.1
    assert growth_of_the_largest_tensor(PLAIN, MASKS[name]) > 3.9


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
def test_memory_on_a_gpu_grows_with_the_length(name):
    peaks = []
    for length in 4096, 8192:
        inputs = queries_keys_values(length, torch.bfloat16, "cuda", batch=2, width=64)
        mask = MASKS[name](length)
        if mask.keys is not None:
            mask = replace(mask, keys=mask.keys.cuda().expand(2, -1))
        FUSED(*inputs, mask).sum().backward()  # what libraries allocate once
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        FUSED(*inputs, mask).sum().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 2.3 * peaks[0]


@pytest.fixture(
    params=[(p, g) for p in ("sinusoidal", "rotary", "alibi") for g in (0, 2) if (p, g) != ("alibi", 2)], ids=str
)
def model(request):
    positions, num_global = request.param
    config = replace(TINY, positions=positions, global_positions=num_global)
    return Transformer(config, 13, 13, 0).double().eval()


SOURCE = torch.tensor(
    [[4, 5, 6, 7, 8, 9, 10, 11, 12, 3], [8, 9, 4, 5, 3, 0, 0, 0, 0, 0], [10, 3, 0, 0, 0, 0, 0, 0, 0, 0]]
)


def test_cached_steps_are_the_full_pass_far_beyond_the_window(model):
    target_in = torch.randint(1, 13, (3, 20))
    logits = model(SOURCE, target_in)
    state = model.start(model.encode(SOURCE))
    kept = model.config.attention_window - 1 + model.config.global_positions
    for t in range(20):
        stepped, state = model.step(target_in[:, t : t + 1], state)
        assert_close(stepped, logits[:, t], **EXACT)
        assert all(past.keys.size(-2) == past.values.size(-2) == min(t + 1, kept) for past in state.past)


def test_several_tokens_may_be_read_in_one_step_through_a_window(model):
    target_in = torch.randint(1, 13, (3, 20))
    logits = model(SOURCE, target_in)
    state = model.start(model.encode(SOURCE))
    for start, end in (0, 1), (1, 6), (6, 7), (7, 9), (9, 20):
        stepped, state = model.step(target_in[:, start:end], state)
        assert_close(stepped, logits[:, end - 1], **EXACT)


def test_padding_and_neighbours_change_nothing_through_a_window(model):
    target_in = torch.randint(1, 13, (3, 12))
    together = model(SOURCE, target_in)
    for row in range(3):
        alone = SOURCE[row][SOURCE[row] != 0][None]
        assert_close(model(alone, target_in[row : row + 1])[0], together[row], **EXACT)


def test_a_token_beyond_the_window_is_seen_only_if_it_is_global():
    """One decoder layer, window 3: position 10 sees positions 8 to 10, and of the global ones what they hold."""
    for num_global in 0, 2:
        config = replace(TINY, decoder_layers=1, global_positions=num_global)
        model = Transformer(config, 13, 13, 0).double().eval()
        target_in = torch.randint(4, 12, (1, 11))
        before = model(SOURCE[:1], target_in)[0, 10]
        for position in range(11):
            changed = target_in.clone()
            changed[0, position] += 1
            seen = position >= 8 or position < num_global
            assert (model(SOURCE[:1], changed)[0, 10] != before).any() == seen


@pytest.mark.parametrize("num_global", [0, 2])
def test_a_model_in_blocks_is_the_plain_model(num_global):
    """Sentences of several blocks of 64, source and target."""
    config = replace(TINY, attention_window=5, global_positions=num_global)
    model = Transformer(config, 13, 13, 0).double().eval()
    plain = Transformer(replace(config, attention_kernel="plain"), 13, 13, 0).double().eval()
    plain.load_state_dict(model.state_dict())
    source, target_in = torch.randint(3, 13, (2, 300)), torch.randint(3, 13, (2, 270))
    source[1, 200:] = 0
    assert_close(model(source, target_in), plain(source, target_in), **EXACT)
