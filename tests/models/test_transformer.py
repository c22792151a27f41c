"""What must hold of a translation model whatever its weights: who may influence whom."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from models.config import ModelConfig
from models.recurrent import RecurrentModel
from models.transformer import Transformer

PAD = 0
V = 13
TINY = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=8, d_ff=16, num_heads=2)
SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
TARGET_IN = torch.tensor([[2, 4, 5, 6], [2, 7, 0, 0], [2, 8, 9, 0]])
LENGTHS = [(5, 4), (3, 2), (2, 3)]
EXACT = {"atol": 1e-12, "rtol": 1e-12}


@pytest.fixture(params=[(k, o) for k in ("plain", "fused") for o in ("pre", "post")], ids="-".join)
def model(request):
    return build(attention_kernel=request.param[0], norm_order=request.param[1])


def build(**choices):
    torch.manual_seed(0)
    return Transformer(replace(TINY, **choices), V, V, PAD).double().eval()


def test_padding_and_batch_mates_change_no_logits(model):
    together = model(SOURCE, TARGET_IN)
    for row, (source_length, target_length) in enumerate(LENGTHS):
        alone = model(SOURCE[row : row + 1, :source_length], TARGET_IN[row : row + 1, :target_length])
        assert_close(together[row, :target_length], alone[0], **EXACT)


def test_padding_changes_no_encoder_state(model):
    together = model.encode(SOURCE)
    for row, (length, _) in enumerate(LENGTHS):
        assert together.keys[row].sum() == length
        assert_close(together.states[row, :length], model.encode(SOURCE[row : row + 1, :length]).states[0], **EXACT)


def test_the_pad_embedding_has_no_influence(model):
    before = model(SOURCE, TARGET_IN)
    # Changed where it enters: as a row of the tied output matrix it is also the pad logit.
    model.source_embedding.register_forward_hook(
        lambda module, args, embedded: embedded.masked_fill((args[0] == PAD)[..., None], 1e6)
    )
    after = model(SOURCE, TARGET_IN)
    for row, (_, length) in enumerate(LENGTHS):
        assert_close(after[row, :length], before[row, :length], **EXACT)


def test_every_token_counts_from_its_position_on_and_never_before(model):
    """So the future does not change the past, and no position sees the label it is to predict."""
    before = model(SOURCE[:1], TARGET_IN[:1])
    for t in range(TARGET_IN.size(1)):
        changed = TARGET_IN[:1].clone()
        changed[0, t] = 11
        moved = (model(SOURCE[:1], changed) - before).abs().amax(-1)[0] > 1e-9
        assert moved.tolist() == [position >= t for position in range(4)]


def test_every_source_token_counts_everywhere_and_so_does_its_place(model):
    before = model(SOURCE[:1], TARGET_IN[:1])
    for s in range(SOURCE.size(1)):
        changed = SOURCE[:1].clone()
        changed[0, s] = 11
        assert ((model(changed, TARGET_IN[:1]) - before).abs().amax(-1) > 1e-9).all()
    swapped = SOURCE[:1, [1, 0, 2, 3, 4]]
    assert ((model(swapped, TARGET_IN[:1]) - before).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_the_loss_of_an_untrained_model_is_about_ln_v(norm_order):
    """Scores of unit variance cost half a nat more than a uniform guess."""
    torch.manual_seed(0)
    vocab_size = 1000
    config = replace(TINY, d_model=64, d_ff=128, tied_embeddings="none", norm_order=norm_order)
    model = Transformer(config, vocab_size, vocab_size, PAD).eval()
    source, target = torch.randint(4, vocab_size, (2, 30, 10))
    logits = model(source, target[:, :-1])
    loss = cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size) + 0.5, abs=0.2)


@pytest.mark.parametrize("name, architecture", [("transformer", Transformer), ("recurrent", RecurrentModel)])
def test_unrelated_pairs_are_not_learned_in_a_moment(name, architecture):
    """A decoder that sees its label brings the loss of random targets to almost nothing."""
    torch.manual_seed(0)
    config = replace(TINY, encoder_layers=1, decoder_layers=1, dropout=0.0, architecture=name)
    model = architecture(config, V, V, PAD).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(100):
        source, target = torch.randint(4, V, (2, 16, 8))
        loss = cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 == pytest.approx(math.log(V - 4), abs=0.15)


def test_dropout_acts_in_training_only():
    model = build(dropout=0.5, attention_dropout=0.5, activation_dropout=0.5)
    assert torch.equal(model(SOURCE, TARGET_IN), model(SOURCE, TARGET_IN))
    model.train()
    assert not torch.equal(model(SOURCE, TARGET_IN), model(SOURCE, TARGET_IN))


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kernel", ["plain", "fused"])
def test_each_dropout_reaches_encoder_and_decoder(kind, kernel):
    model = build(**{"dropout": 0.0, kind: 0.5}, attention_kernel=kernel).train()
    memory = model.encode(SOURCE)
    assert not torch.equal(model.encode(SOURCE).states, memory.states)
    assert not torch.equal(model.decode(TARGET_IN, memory), model.decode(TARGET_IN, memory))


def test_dropout_falls_on_the_embedded_input_and_on_what_a_sublayer_adds():
    model = build(dropout=0.5).train()
    zeroed = model.embed(SOURCE, model.source_embedding, model.source_positions) == 0
    assert 0.2 < zeroed.double().mean() < 0.8
    for layer in [*model.encoder, *model.decoder]:
        for residual in layer.residuals:
            added = residual(torch.zeros(2, 50, 8, dtype=torch.double), torch.ones_like)
            assert_close(added.unique(), torch.tensor([0.0, 2.0], dtype=torch.double), atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_plain_equals_fused_in_logits_and_gradients(norm_order):
    plain, fused = (build(attention_kernel=kernel, norm_order=norm_order) for kernel in ("plain", "fused"))
    fused.load_state_dict(plain.state_dict())
    logits = [model(SOURCE, TARGET_IN) for model in (plain, fused)]
    assert_close(*logits, **EXACT)
    for output in logits:
        output.square().mean().backward()
    for slow, fast in zip(plain.parameters(), fused.parameters(), strict=True):
        assert_close(slow.grad, fast.grad, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loud", [1, 50])
def test_a_source_of_padding_alone_leaves_its_neighbours_and_all_gradients_sound(model, dtype, loud):
    """With weights that make the scores fifty times larger, too."""
    model.to(dtype)
    for layer in [*model.encoder, *model.decoder]:
        layer.self_attention.query_key_value.weight.data *= loud**0.5
    source = torch.tensor([[4, 5, 3], [0, 0, 0]])
    logits = model(source, TARGET_IN[:2])
    logits.float().square().mean().backward()
    assert logits.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    alone = model(source[:1], TARGET_IN[:1])
    assert_close(logits[:1], alone, **({"atol": 0.1, "rtol": 0.1} if dtype == torch.bfloat16 else {}))


def test_autocast_to_bf16_gives_nearly_the_same_logits_and_finite_gradients(model):
    model.float()
    exact = model(SOURCE, TARGET_IN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(SOURCE, TARGET_IN)
    assert_close(rounded.float(), exact, atol=0.1, rtol=0.1)
    rounded.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_embeddings_are_one_table_as_the_choice_says():
    tables = {
        tied: [
            model.source_embedding.weight is model.target_embedding.weight,
            model.target_embedding.weight is model.output_weight,
        ]
        for tied in ("none", "target", "all")
        for model in [build(tied_embeddings=tied)]
    }
    assert tables == {"none": [False, False], "target": [False, True], "all": [True, True]}


def test_vocabularies_may_differ_unless_all_embeddings_are_one():
    model = Transformer(replace(TINY, tied_embeddings="target"), 20, 11, PAD)
    assert model(torch.tensor([[19, 3]]), torch.tensor([[2]])).shape == (1, 1, 11)
    with pytest.raises(
        ValueError, match="tied_embeddings=all needs one joint vocabulary, but the source has 20 pieces"
    ):
        Transformer(TINY, 20, 11, PAD)


def test_embeddings_enter_at_the_size_of_the_sinusoids():
    model = build(d_model=64)
    embedded = model.source_embedding(torch.arange(V)) * math.sqrt(64)
    assert embedded.std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    "choices, message",
    [
        ({"encoder_layers": 0}, "model.encoder_layers=0 must be at least 1"),
        ({"dropout": 1.0}, r"model.dropout=1.0 must lie in \[0, 1\)"),
        ({"num_heads": 3}, "model.num_heads=3 must divide model.d_model=8"),
        ({"d_model": 9, "num_heads": 3}, "model.d_model=9 must be even"),
    ],
)
def test_an_impossible_choice_is_named_with_its_value_and_remedy(choices, message):
    with pytest.raises(ValueError, match=message):
        replace(TINY, **choices)
