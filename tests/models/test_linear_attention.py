"""Linear attention is its quadratic form, however it is cut into chunks and steps; Performer's is near the softmax."""

import math
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from models import linear_attention
from models.attention import attention_weights
from models.cache import share_heads
from models.config import ModelConfig
from models.linear_attention import EluAttention, Performer, orthogonal_gaussians
from models.masks import Mask
from models.transformer import Transformer

EXACT = {"atol": 1e-12, "rtol": 1e-11}
KINDS = {"performer": lambda: Performer(head_width=4, num_features=10).double(), "elu": EluAttention}
MASKS = {
    "nothing": Mask(),
    "padding": Mask(torch.tensor([[True] * 9, [True] * 4 + [False] * 5])),
    "a row of padding alone": Mask(torch.tensor([[True] * 9, [False] * 9])),
    "causal": Mask(causal=True),
    "causal padding": Mask(torch.tensor([[True] * 9, [True] * 4 + [False] * 5]), causal=True),
    "causal padding before": Mask(torch.tensor([[True] * 9, [False] * 5 + [True] * 4]), causal=True),
    "causal holes": Mask(torch.tensor([[True, False, True] * 3, [False] * 9]), causal=True),
}


@pytest.fixture(params=KINDS)
def attend(request):
    torch.manual_seed(0)
    return KINDS[request.param]()


@pytest.fixture
def short_chunks(monkeypatch):
    monkeypatch.setattr(linear_attention, "CHUNK", 4)


def no_bias(q, num_keys):
    return None


def queries_keys_values(length=9, num_queries=None, shared=3, dtype=torch.double):
    shapes = (2, 3, num_queries or length, 4), (2, shared, length, 4), (2, shared, length, 2)
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


def quadratic_weights(attend, q, k, mask):
    """The formula: φ(q)·φ(k) of each visible pair over their sum."""
    products = attend.log_features(q).exp() @ attend.log_features(k).exp().mT
    visible = mask.dense(q.size(-2), k.size(-2))
    products = products if visible is None else products * visible
    return products / products.sum(-1, keepdim=True).clamp_min(1e-300)


def visible_of(mask, length=9):
    visible = mask.dense(length, length)
    return torch.ones(2, length, length, dtype=bool) if visible is None else visible.expand(2, 1, length, length)[:, 0]


@pytest.mark.parametrize("num_queries", [9, 2, 1])
@pytest.mark.parametrize("name", MASKS)
def test_equals_the_quadratic_form_in_outputs_and_gradients(attend, name, num_queries, short_chunks):
    inputs = q, k, v = queries_keys_values(num_queries=num_queries)
    linear = attend(*inputs, MASKS[name])
    quadratic = quadratic_weights(attend, q, k, MASKS[name]) @ v
    assert_close(linear, quadratic, **EXACT)
    assert_close(attend.weights(q, k, MASKS[name]), quadratic_weights(attend, q, k, MASKS[name]), **EXACT)
    seed = torch.randn_like(linear)
    fast, slow = (torch.autograd.grad(output, inputs, seed) for output in (linear, quadratic))
    assert_close(fast, slow, **EXACT)
    weights, quadratic = attend.weights(q, k, MASKS[name]), quadratic_weights(attend, q, k, MASKS[name])
    seed = torch.randn_like(weights)
    fast, slow = (torch.autograd.grad(output, (q, k), seed) for output in (weights, quadratic))
    assert_close(fast, slow, **EXACT)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 12, 13])
def test_chunks_change_nothing(attend, length, monkeypatch):
    inputs = queries_keys_values(length)
    past = attend.remember(*queries_keys_values(3)[1:], Mask())
    whole = attend.grow(*inputs, past, Mask(causal=True), no_bias)
    monkeypatch.setattr(linear_attention, "CHUNK", 4)
    cut = attend.grow(*inputs, past, Mask(causal=True), no_bias)
    assert_close(cut, whole, **EXACT)


def test_a_length_beyond_the_real_chunk_equals_the_quadratic_form(attend):
    for length in linear_attention.CHUNK, linear_attention.CHUNK + 1, 2 * linear_attention.CHUNK + 5:
        q, k, v = queries_keys_values(length)
        quadratic = quadratic_weights(attend, q, k, Mask(causal=True)) @ v
        assert_close(attend(q, k, v, Mask(causal=True)), quadratic, **EXACT)


@pytest.mark.parametrize("shared", [1, 3])
def test_steps_equal_the_whole_with_rows_chosen_in_between(attend, shared):
    """Also where three heads of queries share the keys of one; and what is remembered does not get longer."""
    q, k, v = queries_keys_values(shared=shared)
    sizes = set()
    past = attend.remember(k[:, :, :0], v[:, :, :0], Mask())
    assert past.sums.size(0) == 2
    for t in range(9):
        rows = torch.randint(2, (2,))
        past = past.select(rows)
        q, k, v = q[rows], k[rows], v[rows]
        new = (x[:, :, t : t + 1] for x in (q, k, v))
        y, past = attend.grow(*new, past, Mask(causal=True), no_bias)
        whole = attend(q, share_heads(k, 3), share_heads(v, 3), Mask(causal=True))
        assert_close(y[:, :, 0], whole[:, :, t], **EXACT)
        sizes.add(tuple(x.shape for x in past))
    assert len(sizes) == 1
    assert past.sums.size(1) == shared


@pytest.mark.parametrize("shared", [1, 3])
def test_what_is_recalled_of_other_keys_is_what_attends_to_them(attend, shared):
    q, k, v = queries_keys_values(shared=shared, num_queries=5)
    mask = MASKS["padding"]
    recalled = attend.recall(q, attend.remember(k, v, mask), mask)
    assert_close(recalled, attend(q, share_heads(k, 3), share_heads(v, 3), mask), **EXACT)


def test_without_causality_past_and_new_keys_are_read_alike(attend):
    q, k, v = queries_keys_values(num_queries=5)
    mask = MASKS["padding"]
    past = attend.remember(k[:, :, :4], v[:, :, :4], Mask(mask.keys[:, :4]))
    y, grown = attend.grow(q, k[:, :, 4:], v[:, :, 4:], past, mask, no_bias)
    assert_close(y, attend(q, k, v, mask), **EXACT)
    assert_close(grown, attend.remember(k, v, mask), **EXACT)


@pytest.mark.parametrize("name", MASKS)
def test_a_hidden_key_has_no_influence_at_all(attend, name, short_chunks):
    """So neither the future nor padding has any, even where the change is large."""
    q, k, v = (x.detach() for x in queries_keys_values())
    visible = visible_of(MASKS[name])
    before = attend(q, k, v, MASKS[name])
    for key in range(9):
        loud_k, loud_v = k.clone(), v.clone()
        loud_k[:, :, key], loud_v[:, :, key] = 9, 1e6
        unchanged = (attend(q, loud_k, loud_v, MASKS[name]) == before).all(-1).all(1)
        assert (unchanged == ~visible[:, :, key]).all()


def test_padding_and_batch_mates_change_nothing(attend, short_chunks):
    q, k, v = queries_keys_values()
    k.data[0] *= 30  # a mate whose features are larger by far
    for causal in False, True:
        together = attend(q, k, v, Mask(MASKS["padding"].keys, causal))
        alone = attend(q[1:, :, :4], k[1:, :, :4], v[1:, :, :4], Mask(causal=causal))
        assert_close(together[1:, :, :4], alone, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_without_visible_keys_is_zero_and_leaves_gradients_finite(attend, causal, dtype, short_chunks):
    q, k, v = (x.to(dtype).detach().requires_grad_() for x in queries_keys_values())
    keys = torch.tensor([[False] * 9, [False] * 5 + [True] * 4])
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        output = attend(50 * q, k, v, Mask(keys, causal))
        output.float().square().sum().backward()
    blind = ~visible_of(Mask(keys, causal)).any(-1)
    assert (output.transpose(1, 2)[blind] == 0).all()
    assert (output.transpose(1, 2)[~blind] != 0).all()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
        assert (tensor.grad[0] == 0).all()
        assert tensor.grad[1].any()
    assert output.dtype == dtype


@pytest.mark.parametrize("kind", ["performer", "elu"])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_fifty_times_too_large_are_read_in_32_bits_as_in_64(kind, causal):
    torch.manual_seed(0)
    attend = {"performer": Performer(64, 256), "elu": EluAttention()}[kind]
    q, k, v = torch.randn(3, 2, 3, 200, 64)
    q, k = 50**0.5 * q, 50**0.5 * k
    rough = attend(q, k, v, Mask(causal=causal))
    fine = attend.double()(q.double(), k.double(), v.double(), Mask(causal=causal))
    assert_close(rough, fine.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["performer", "elu"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1, 50, 1000])
def test_weights_sum_to_one_however_far_apart_queries_and_keys_are(kind, causal, scale):
    """Opposite ones, whose largest features are elsewhere, and keys that grow along the sentence."""
    torch.manual_seed(0)
    attend = {"performer": Performer(64, 256), "elu": EluAttention()}[kind]
    q = scale**0.5 * torch.randn(2, 3, 150, 64)
    k = -q * torch.linspace(0, 1, 150)[:, None]
    q, k = q.requires_grad_(), k.requires_grad_()
    v = torch.randn(2, 3, 150, 5)
    output = attend(q, k, torch.cat([v, torch.ones_like(v[..., :1])], -1), Mask(causal=causal))
    assert_close(output[..., -1], torch.ones(2, 3, 150))
    for gradient in torch.autograd.grad(output.square().sum(), (q, k)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("autocast", [False, True])
def test_16_bit_inputs_are_computed_with_in_32_bits(attend, causal, autocast):
    attend.float()
    inputs = queries_keys_values(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        actual = attend(*inputs, Mask(causal=causal))
        memory = attend.remember(*inputs[1:], Mask())
        weights = attend.weights(*inputs[:2], Mask())
    expected = attend(*(x.float() for x in inputs), Mask(causal=causal))
    assert_close(actual, expected.bfloat16(), rtol=0, atol=0)
    assert {x.dtype for x in memory} == {torch.float32}
    assert_close(weights, attend.weights(*(x.float() for x in inputs[:2]), Mask()).bfloat16(), rtol=0, atol=0)


def test_elu_features_are_elu_plus_one():
    x = torch.tensor([-700.0, -2.0, -1e-9, 0.0, 1e-9, 3.0], dtype=torch.double, requires_grad=True)
    features = EluAttention().log_features(x[None, None, None]).exp()[0, 0, 0]
    assert_close(features[1:], torch.nn.functional.elu(x[1:]) + 1, **EXACT)
    assert features[0] > 0
    slopes = torch.autograd.grad(features.sum(), x)[0]
    assert_close(slopes[1:], torch.tensor([math.exp(-2), 1, 1, 1, 1], dtype=torch.double), atol=1e-8, rtol=0)


def test_directions_are_orthogonal_in_blocks_and_as_long_as_gaussian_vectors():
    torch.manual_seed(0)
    rows = orthogonal_gaussians(20, 8).double()
    assert rows.shape == (20, 8)
    for block in rows.split(8):
        products = block @ block.mT
        assert_close(products, products.diagonal().diag(), atol=1e-5, rtol=0)
    assert rows[0] @ rows[8] != pytest.approx(0, abs=1e-3)
    rows = orthogonal_gaussians(40_000, 8).double()
    # The square of a length has the mean K and the variance 2 K (chi-squared); each entry, mean 0 and variance 1.
    assert rows.square().sum(-1).mean().item() == pytest.approx(8, rel=0.02)
    assert rows.square().sum(-1).var().item() == pytest.approx(16, rel=0.06)
    assert_close(rows.mean(0), torch.zeros(8, dtype=torch.double), atol=0.03, rtol=0)
    assert_close(rows.mT @ rows / 40_000, torch.eye(8, dtype=torch.double), atol=0.04, rtol=0)


def test_products_of_random_features_have_the_softmax_kernel_as_their_mean():
    """Over many draws, each mean within five standard errors (for 36 of them, a chance of 2e-5 to fail)."""
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 1, 6, 4, dtype=torch.double)
    draws = []
    for _ in range(2000):
        attend = Performer(head_width=4, num_features=16)
        draws.append(attend.log_features(q).exp() @ attend.log_features(k).exp().mT)
    draws = torch.cat(draws)[:, 0]
    exact = (q @ k.mT / 2).exp()[0, 0]
    errors = (draws.mean(0) - exact) / (draws.std(0) / math.sqrt(len(draws)))
    assert errors.abs().max() < 5
    assert (draws.std(0) > 0.1 * exact).all()  # so the mean was no matter of course


def test_the_error_against_softmax_falls_with_the_root_of_the_number_of_features():
    torch.manual_seed(0)
    q, k = 0.4 * torch.randn(2, 1, 8, 20, 8, dtype=torch.double)  # of vectors this long, rare draws do not decide
    exact = attention_weights(q, k, Mask())
    errors = []
    for num_features in 64, 256, 1024, 4096:
        draws = [Performer(8, num_features).weights(q, k, Mask()) for _ in range(10)]
        errors.append(torch.stack([(draw - exact).square().mean() for draw in draws]).mean().sqrt().item())
    for more, less in pairwise(errors):
        assert more / less == pytest.approx(2, rel=0.2)
    assert errors[-1] < 0.1 * exact.square().mean().sqrt()


def test_random_features_follow_the_seed_and_are_saved_with_the_weights():
    directions = []
    for seed in 1, 1, 2:
        torch.manual_seed(seed)
        directions.append(Performer(4, 10).state_dict()["directions"])
    assert torch.equal(directions[0], directions[1])
    assert not torch.equal(directions[0], directions[2])


@pytest.mark.parametrize("causal", [False, True])
def test_memory_for_the_gradient_is_linear_in_the_length(attend, causal):
    def numbers_kept(length):
        kept = {}

        def note(x):
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().size()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            attend(*queries_keys_values(length), Mask(causal=causal))
        return sum(kept.values())

    chunk = linear_attention.CHUNK
    short, middle, long = numbers_kept(2 * chunk), numbers_kept(4 * chunk), numbers_kept(6 * chunk)
    assert long - middle == pytest.approx(middle - short, rel=0.02)


@pytest.mark.parametrize(
    "mask, bias, dropout, message",
    [
        (Mask(window=2), None, 0.0, "all keys or none: set model.attention_window=0"),
        (Mask(causal=True, window=2), None, 0.0, "all keys or none: set model.attention_window=0"),
        (Mask(), torch.zeros(1, 1, 9, 9).double(), 0.0, "no scores to add a bias to: set model.positions=sinusoidal"),
        (Mask(causal=True), torch.zeros(1, 1, 9, 9).double(), 0.0, "no scores to add a bias to"),
        (Mask(), None, 0.1, "no weights to drop: set model.attention_dropout=0"),
        (Mask(causal=True), None, 0.1, "no weights to drop: set model.attention_dropout=0"),
    ],
)
def test_what_needs_single_weights_is_refused(attend, mask, bias, dropout, message):
    with pytest.raises(ValueError, match=message):
        attend(*queries_keys_values(), mask, bias, dropout)


SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
CHOICES = {
    "performer": {"attention": "performer", "random_features": 12},
    "performer, grouped, rotary": {
        "attention": "performer", "random_features": 12, "num_key_value_heads": 1, "positions": "rotary"
    },
    "elu": {"attention": "elu"},
    "elu, grouped": {"attention": "elu", "num_key_value_heads": 1},
}  # fmt: skip


@pytest.fixture(params=CHOICES)
def model(request):
    torch.manual_seed(0)
    config = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=8, d_ff=16, num_heads=2, **CHOICES[request.param])
    return Transformer(config, 13, 13, 0).double().eval()


@pytest.mark.parametrize("beams", [1, 3])
def test_a_step_of_a_transformer_is_a_row_of_the_full_pass_after_any_selection(model, beams, short_chunks):
    going = torch.arange(3)  # the sentences still in the batch
    state = model.start(model.encode(SOURCE)).select(going[:, None].expand(-1, beams))
    prefixes = torch.empty(3, beams, 0, dtype=torch.long)
    for step in range(6):
        tokens = torch.randint(1, 13, (len(going), beams, 1))
        prefixes = torch.cat([prefixes, tokens], dim=-1)
        logits, state = model.step(tokens.view(-1, 1), state)
        source = SOURCE[going].repeat_interleave(beams, dim=0)
        assert_close(logits, model(source, prefixes.flatten(0, 1))[:, -1], **EXACT)
        kept = torch.tensor({2: [0, 2]}.get(step, range(len(going))))
        chosen = torch.randint(beams, (len(kept), beams))
        state = state.select(kept[:, None] * beams + chosen)
        going, prefixes = going[kept], prefixes[kept[:, None], chosen]


def test_padding_and_the_future_change_no_logits_of_a_transformer(model):
    target_in = torch.tensor([[2, 4, 5, 6], [2, 7, 0, 0], [2, 8, 9, 0]])
    together = model(SOURCE, target_in)
    for row, (source_length, target_length) in enumerate([(5, 4), (3, 2), (2, 3)]):
        alone = model(SOURCE[row : row + 1, :source_length], target_in[row : row + 1, :target_length])
        assert_close(together[row, :target_length], alone[0], **EXACT)
    changed = target_in.clone()
    changed[:, 2] = 11
    moved = (model(SOURCE, changed) != together).any(-1)
    assert moved.tolist() == [[False, False, True, True]] * 3


def test_autocast_to_bf16_gives_nearly_the_same_logits_and_finite_gradients(model):
    model.float()
    target_in = torch.tensor([[2, 4, 5, 6], [2, 7, 0, 0], [2, 8, 9, 0]])
    exact = model(SOURCE, target_in)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(SOURCE, target_in)
    assert_close(rounded.float(), exact, atol=0.1, rtol=0.1)
    rounded.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
