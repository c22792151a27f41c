"""The loss counts real tokens and nothing else, and its fast form is the plain form."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import models.loss
from models.loss import label_smoothed_cross_entropy, projected_cross_entropy

PAD, SMOOTHING, WORDS, WIDTH = 0, 0.1, 11, 6


@pytest.fixture(autouse=True)
def several_pieces(monkeypatch):
    """Products of four rows and softmaxes of three, so that every test crosses from piece to piece of both kinds."""
    monkeypatch.setitem(models.loss.LOGITS_PER_PRODUCT, "cpu", 4 * WORDS)
    monkeypatch.setitem(models.loss.LOGITS_PER_SOFTMAX, "cpu", 3 * WORDS)


def example(dtype=torch.double):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(3, 5, WIDTH, dtype=dtype, generator=generator).requires_grad_()
    weight = torch.randn(WORDS, WIDTH, dtype=dtype, generator=generator).requires_grad_()
    target = torch.randint(1, WORDS, (3, 5), generator=generator)
    target[0, 3:] = target[2, 1:] = PAD  # 9 real tokens
    return hidden, weight, target


def plain(hidden, weight, target, smoothing=SMOOTHING):
    return label_smoothed_cross_entropy(hidden @ weight.T, target, smoothing, PAD)


def fast(hidden, weight, target, smoothing=SMOOTHING, **options):
    return projected_cross_entropy(hidden, weight, target, smoothing, PAD, **options)[0]


def gradients(loss, *inputs):
    return torch.autograd.grad(loss, inputs)


def test_the_loss_is_torchs_definition_over_real_tokens_whatever_the_padding():
    probabilities = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]]
    logits, target = torch.tensor(probabilities).double().log(), torch.tensor([0, 1, 3])
    padded_logits, padded_target = F.pad(logits, (0, 0, 0, 5), value=7.0), F.pad(target, (0, 5), value=3)
    for z, y in [(logits, target), (padded_logits, padded_target)]:
        means = [label_smoothed_cross_entropy(z, y, smoothing, pad_id=3) / 2 for smoothing in (0.1, 0.0)]
        assert_close(torch.stack(means), torch.tensor([0.502618, 0.356675]).double(), atol=1e-6, rtol=0)
        sums = projected_cross_entropy(z, torch.eye(4).double(), y, 0.1, pad_id=3)
        assert_close(torch.stack(sums) / 2, torch.stack(means))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_the_fast_loss_and_its_gradients_are_the_plain_ones(smoothing):
    hidden, weight, target = example()
    expected, actual = plain(hidden, weight, target, smoothing), fast(hidden, weight, target, smoothing)
    assert_close(actual, expected)
    assert_close(gradients(3 * actual, hidden, weight), gradients(3 * expected, hidden, weight))


def test_the_gradients_are_those_of_finite_differences():
    hidden, weight, target = example()
    assert torch.autograd.gradcheck(lambda h, w: fast(h, w, target), (hidden, weight))


def test_the_second_value_is_the_loss_without_smoothing_and_carries_no_gradient():
    hidden, weight, target = example()
    _, exact = projected_cross_entropy(hidden, weight, target, SMOOTHING, PAD)
    assert_close(exact, plain(hidden, weight, target, smoothing=0.0).detach())
    assert not exact.requires_grad


def test_nothing_at_padded_positions_reaches_the_loss_or_its_gradients():
    hidden, weight, target = example()
    expected = gradients(fast(hidden, weight, target), hidden, weight)
    spoilt = hidden.detach().masked_fill((target == PAD).unsqueeze(-1), float("nan")).requires_grad_()
    actual = gradients(fast(spoilt, weight, target), spoilt, weight)
    assert_close(actual, expected)
    assert (actual[0][target == PAD] == 0).all()


def test_a_batch_of_nothing_but_padding_has_no_loss():
    hidden, weight, target = example()
    loss = fast(hidden, weight, torch.full_like(target, PAD))
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients(loss, hidden, weight))


def test_a_word_beyond_any_doubt_or_hope_still_has_a_finite_loss():
    logits = torch.tensor([[300.0, 0.0, -300.0]])
    for word in range(3):
        loss, exact = projected_cross_entropy(logits, torch.eye(3), torch.tensor([word]), SMOOTHING, pad_id=-1)
        assert_close(loss, label_smoothed_cross_entropy(logits, torch.tensor([word]), SMOOTHING, pad_id=-1))
        assert_close(exact, torch.tensor(300.0 * word))


def test_a_tied_table_receives_both_of_its_gradients():
    _, weight, target = example()
    source = torch.tensor([[1, 2, 3, 4, 5]]).expand_as(target)
    expected = gradients(plain(F.embedding(source, weight), weight, target), weight)
    assert_close(gradients(fast(F.embedding(source, weight), weight, target), weight), expected)


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_either_side_may_be_frozen(frozen):
    hidden, weight, target = example()
    (hidden if frozen == "hidden" else weight).requires_grad_(False)
    learning = weight if frozen == "hidden" else hidden
    actual, expected = fast(hidden, weight, target), plain(hidden, weight, target)
    assert_close(gradients(actual, learning), gradients(expected, learning))


def test_without_gradients_none_are_computed(monkeypatch):
    hidden, weight, target = example()
    expected = fast(hidden, weight, target).detach()
    monkeypatch.setattr(torch.Tensor, "scatter_add_", None)  # the first step towards a gradient
    with torch.no_grad():
        assert_close(fast(hidden, weight, target), expected)
    with pytest.raises(TypeError):
        fast(hidden, weight, target)


def test_gradients_add_up_over_batches_and_survive_a_second_backward():
    hidden, weight, target = example()
    loss = fast(hidden, weight, target)
    loss.backward(retain_graph=True)
    once = weight.grad.clone()
    loss.backward()
    fast(hidden, weight, target).backward()
    assert_close(weight.grad, 3 * once)


def test_products_in_bfloat16_stay_near_and_everything_else_stays_in_32_bits():
    hidden, weight, target = example(torch.float32)
    expected = plain(hidden, weight, target)
    actual = fast(hidden, weight, target, product_dtype=torch.bfloat16)
    assert actual.dtype == torch.float32
    assert actual.item() != expected.item()
    assert_close(actual, expected, rtol=1e-2, atol=0)
    for a, e in zip(gradients(actual, hidden, weight), gradients(expected, hidden, weight), strict=True):
        assert a.dtype == torch.float32
        assert (a - e).norm() < 1e-2 * e.norm()


def test_autocast_chooses_the_type_of_the_products():
    hidden, weight, target = example(torch.float32)
    expected = fast(hidden, weight, target, product_dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = fast(hidden, weight, target)
    assert_close(actual, expected, rtol=0, atol=0)
    assert_close(gradients(actual, hidden, weight), gradients(expected, hidden, weight), rtol=0, atol=0)


def test_a_bfloat16_model_gets_bfloat16_gradients_and_a_32_bit_loss():
    hidden, weight, target = example(torch.bfloat16)
    loss = fast(hidden, weight, target)
    assert loss.dtype == torch.float32
    assert_close(loss, plain(hidden.float(), weight.float(), target), rtol=1e-2, atol=0)
    assert {gradient.dtype for gradient in gradients(loss, hidden, weight)} == {torch.bfloat16}


def test_the_branch_for_devices_that_must_not_wait_agrees(monkeypatch):
    hidden, weight, target = example()
    expected = fast(hidden, weight, target)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    actual = fast(hidden, weight, target)
    assert_close(actual, expected)
    assert_close(gradients(actual, hidden, weight), gradients(expected, hidden, weight))


def test_it_trains_a_compiled_model():
    hidden, weight, target = example()
    layer = torch.nn.Linear(WIDTH, WIDTH).double()
    compiled = torch.compile(layer, backend="aot_eager")
    expected = gradients(plain(layer(hidden), weight, target), layer.weight, weight)
    assert_close(gradients(fast(compiled(hidden), weight, target), layer.weight, weight), expected)
