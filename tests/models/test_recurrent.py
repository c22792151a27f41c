"""What must hold of the recurrent model whatever its weights, its LSTMs against torch's, and that it learns."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.testing import assert_close

from models.attention_maps import attention_maps
from models.config import ModelConfig
from models.length import LENGTH_NORMALISATIONS
from models.multi_head_attention import CrossAttention
from models.recurrent import LSTM, BidirectionalLSTM, RecurrentModel, reversed_order, summary
from models.search import beam_search, score_targets
from models.transformer import Transformer
from tests.models.tables import rereading

PAD, BOS, EOS = 0, 2, 3
V = 13
TINY = ModelConfig(architecture="recurrent", encoder_layers=2, decoder_layers=3, d_model=8, num_heads=2)
KINDS = ["dot_product", "additive", "none"]
SOURCE = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0], [10, 3, 0, 0, 0]])
TARGET_IN = torch.tensor([[2, 4, 5, 6], [2, 7, 0, 0], [2, 8, 9, 0]])
LENGTHS = [(5, 4), (3, 2), (2, 3)]
EXACT = {"atol": 1e-12, "rtol": 1e-12}


@pytest.fixture(params=KINDS)
def model(request):
    return build(attention=request.param)


def build(**choices):
    torch.manual_seed(0)
    return RecurrentModel(replace(TINY, **choices), V, V, PAD).double().eval()


def test_padding_and_batch_mates_change_neither_logits_nor_encoder_states(model):
    logits, memory = model(SOURCE, TARGET_IN), model.encode(SOURCE)
    for row, (source_length, target_length) in enumerate(LENGTHS):
        source = SOURCE[row : row + 1, :source_length]
        alone = model(source, TARGET_IN[row : row + 1, :target_length])
        assert_close(logits[row, :target_length], alone[0], **EXACT)
        assert memory.keys[row].sum() == source_length
        assert_close(memory.states[row, :source_length], model.encode(source).states[0], **EXACT)


def test_every_target_token_counts_from_its_position_on_and_never_before(model):
    before = model(SOURCE[:1], TARGET_IN[:1])
    for t in range(TARGET_IN.size(1)):
        changed = TARGET_IN[:1].clone()
        changed[0, t] = 11
        after = model(SOURCE[:1], changed)
        assert_close(after[:, :t], before[:, :t], atol=0, rtol=0)
        assert ((after - before)[0, t:].abs().amax(-1) > 1e-9).all()


def test_every_source_token_counts_everywhere_and_so_does_its_place(model):
    before = model(SOURCE[:1], TARGET_IN[:1])
    for s in range(SOURCE.size(1)):
        changed = SOURCE[:1].clone()
        changed[0, s] = 11
        assert ((model(changed, TARGET_IN[:1]) - before).abs().amax(-1) > 1e-9).all()
    swapped = SOURCE[:1, [1, 0, 2, 3, 4]]
    assert ((model(swapped, TARGET_IN[:1]) - before).abs().amax(-1) > 1e-9).all()


def test_the_encoder_is_torchs_bidirectional_lstm_on_packed_sentences():
    torch.manual_seed(1)
    ours = BidirectionalLSTM(8).double()
    theirs = nn.LSTM(8, 4, batch_first=True, bidirectional=True).double()
    weights = dict(ours.onward.named_parameters())
    theirs.load_state_dict(weights | {f"{name}_reverse": weight for name, weight in ours.backward.named_parameters()})
    x, lengths = torch.randn(3, 5, 8, dtype=torch.double), torch.tensor([5, 3, 1])
    keys = torch.arange(5) < lengths[:, None]
    packed, (final, _) = theirs(pack_padded_sequence(x, lengths, batch_first=True))
    states = ours(x, reversed_order(keys))
    assert_close(states * keys[..., None], pad_packed_sequence(packed, batch_first=True)[0], **EXACT)
    assert_close(summary(states, keys), torch.cat([*final], -1), **EXACT)


def test_a_sentence_is_reversed_in_front_of_its_padding():
    order = reversed_order(torch.tensor([[True] * 4, [True, True, True, False], [False] * 4]))[..., 0]
    assert order.tolist() == [[3, 2, 1, 0], [2, 1, 0, 3], [0, 1, 2, 3]]


def test_the_width_may_be_odd():
    logits = build(d_model=9, num_heads=3)(SOURCE, TARGET_IN)
    assert logits.shape == (3, 4, V)


def test_steps_equal_the_full_pass_whatever_rows_and_sentences_go(model):
    """Rows are spread into beams, exchanged, and a sentence leaves: each row's logits are those of its whole prefix."""
    torch.manual_seed(2)
    state = model.start(model.encode(SOURCE))
    sentences, prefixes = torch.arange(3), torch.full((3, 1), BOS)
    selections = [[[0, 0], [1, 1], [2, 2]], [[1, 0], [2, 2], [5, 4]], [[1, 0], [4, 5]], [[2, 2]], [[1, 0]]]
    for selection in selections:
        logits, state = model.step(prefixes[:, -1:], state)
        assert_close(logits, model(SOURCE[sentences], prefixes)[:, -1], **EXACT)
        rows = torch.tensor(selection)
        state = state.select(rows)
        sentences, prefixes = sentences[rows.flatten()], prefixes[rows.flatten()]
        prefixes = torch.cat([prefixes, torch.randint(4, V, (rows.numel(), 1))], 1)
    assert state.position == len(selections) and state.mask.keys.size(0) == 1


def test_several_tokens_in_one_step_are_as_many_steps(model):
    memory = model.encode(SOURCE)
    _, state = model.step(TARGET_IN[:, :1], model.start(memory))
    hidden, state = model.advance(TARGET_IN[:, 1:], state)
    assert_close(hidden, model.decode(TARGET_IN, memory)[:, 1:], **EXACT)


def test_a_beam_search_equals_one_that_reads_the_whole_prefix_at_every_step(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    torch.manual_seed(5)
    lengths = torch.arange(12) % 9 + 1
    source = torch.randint(4, V, (12, 9)).masked_fill(torch.arange(9) >= lengths[:, None], PAD)
    allowed = {"forbidden_ids": (PAD, BOS), "length": LENGTH_NORMALISATIONS["average"](0.6)}

    def search(step, state):
        return beam_search(step, state, 2 * lengths + 1, beam_size=4, bos_id=BOS, eos_id=EOS, **allowed)

    found = search(model.step, model.start(model.encode(source)))
    slow = search(*rereading(model, source))
    assert [h.ids for [h] in found] == [h.ids for [h] in slow]
    assert len({len(h.ids) for [h] in found}) > 3, "sentences leave at different times"
    for [hypothesis], ids in zip(found, source, strict=True):
        target = torch.tensor([[BOS, *hypothesis.ids] + [EOS] * hypothesis.finished])
        forced = score_targets(model(ids[None], target[:, :-1]), target[:, 1:], pad_id=PAD, **allowed)
        assert forced.item() == pytest.approx(hypothesis.score, rel=1e-6)


def test_additive_attention_scores_each_source_state_with_each_question():
    """Bahdanau et al. (2015), written as loops, for the first step of the decoder."""
    model = build(attention="additive")
    memory = model.encode(SOURCE)
    question, _ = model.decoder[0](model.scaled(model.target_embedding, TARGET_IN[:, :1]), model.start(memory).past[0])
    attention = model.context
    key_weight, value_weight = attention.key_value.weight.chunk(2)
    context = torch.zeros(3, 8, dtype=torch.double)
    for sentence, (length, _) in enumerate(LENGTHS):
        for head in range(2):
            at = slice(4 * head, 4 * head + 4)
            q = attention.query.weight[at] @ question[sentence, 0]
            states = memory.states[sentence, :length]
            scores = [attention.attend.vectors[head] @ torch.tanh(q + key_weight[at] @ state) for state in states]
            weights = torch.stack(scores).softmax(0)
            context[sentence, at] = sum(
                weight * (value_weight[at] @ state) for weight, state in zip(weights, states, strict=True)
            )
    known = attention.read(memory.states, model.start(memory).mask)
    assert_close(attention(question, known, model.start(memory).mask)[:, 0], attention.output(context), **EXACT)


def test_without_attention_the_source_is_one_vector():
    model = build(attention="none")
    assert not any(isinstance(module, CrossAttention) for module in model.modules())
    memory = model.encode(SOURCE)
    others = torch.randn_like(memory.states)
    half = others.size(-1) // 2
    others[:, 0, half:] = memory.states[:, 0, half:]
    for row, (length, _) in enumerate(LENGTHS):
        others[row, length - 1, :half] = memory.states[row, length - 1, :half]
    assert torch.equal(model.decode(TARGET_IN, memory._replace(states=others)), model.decode(TARGET_IN, memory))
    others[0, 0, half:] += 1
    changed = (model.decode(TARGET_IN, memory._replace(states=others)) != model.decode(TARGET_IN, memory)).any(-1)
    assert changed.tolist() == [[True] * 4, [False] * 4, [False] * 4]


@pytest.mark.parametrize("kind, layers", [("dot_product", 1), ("additive", 1), ("none", 0)])
def test_attention_maps_show_where_the_decoder_read(kind, layers):
    maps = attention_maps(build(attention=kind), SOURCE, TARGET_IN)
    assert maps.encoder == maps.decoder == [] and len(maps.cross) == layers
    for weights in maps.cross:
        assert weights.shape == (3, 2, 4, 5)
        assert_close(weights.sum(-1), torch.ones(3, 2, 4, dtype=torch.double), **EXACT)
        assert (weights.transpose(1, 3)[SOURCE == PAD] == 0).all()


def test_the_loss_of_an_untrained_model_is_about_ln_v(model):
    """The output lies within ±1, so scores start smaller than the Transformer's, which cost half a nat."""
    torch.manual_seed(0)
    vocab_size = 1000
    config = replace(model.config, d_model=64, tied_embeddings="none")
    model = RecurrentModel(config, vocab_size, vocab_size, PAD).eval()
    source, target = torch.randint(4, vocab_size, (2, 30, 10))
    loss = cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size) + 0.1, abs=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_source_of_padding_alone_leaves_its_neighbours_and_all_gradients_sound(model, dtype):
    model.to(dtype).train()
    source = torch.tensor([[4, 5, 3], [0, 0, 0]])
    logits = model(source, TARGET_IN[:2])
    assert logits.dtype == dtype and logits.isfinite().all()
    logits.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert all(parameter.grad.any() for parameter in model.parameters())
    together, alone = model.eval()(source, TARGET_IN[:2])[:1], model(source[:1], TARGET_IN[:1])
    assert_close(together, alone, **({"atol": 0.1, "rtol": 0.1} if dtype == torch.bfloat16 else {}))


def test_autocast_to_bf16_gives_nearly_the_same_logits_and_finite_gradients(model):
    model.float()
    exact = model(SOURCE, TARGET_IN)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(SOURCE, TARGET_IN)
        _, state = model.step(TARGET_IN[:, :1], model.start(model.encode(SOURCE)))
        hidden, _ = model.advance(TARGET_IN[:, 1:], state)
    assert state.past[0].cell.dtype == torch.float32, "what is carried from step to step is not rounded"
    for logits, expected in ((rounded, exact), (model.project(hidden.float()), exact[:, 1:])):
        assert_close(logits.float(), expected, atol=0.05, rtol=0.05)
    rounded.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_what_the_cpu_gives(kind):
    model = build(attention=kind)
    expected = model(SOURCE, TARGET_IN)
    model.cuda()
    assert_close(model(SOURCE.cuda(), TARGET_IN.cuda()).cpu(), expected, **EXACT)
    model.float()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        rounded = model(SOURCE.cuda(), TARGET_IN.cuda())
    assert_close(rounded.double().cpu(), expected, atol=0.05, rtol=0.05)
    (rounded.float().square().mean() * 1e-12).backward()
    assert all(parameter.grad.any() for parameter in model.parameters()), "in float16 they would be zero"


def test_gates_forget_little_at_first_and_recurrent_matrices_turn_without_stretching():
    torch.manual_seed(0)
    lstm = LSTM(6, 4).double()
    assert (lstm.bias_ih_l0 + lstm.bias_hh_l0).tolist() == [0] * 4 + [1] * 4 + [0] * 8
    for gate in lstm.weight_hh_l0.chunk(4):
        assert_close(gate @ gate.T, torch.eye(4, dtype=torch.double), atol=1e-6, rtol=0)


def test_dropout_acts_in_training_only_and_on_both_sides():
    model = build(dropout=0.5)
    assert torch.equal(model(SOURCE, TARGET_IN), model(SOURCE, TARGET_IN))
    model.train()
    memory = model.encode(SOURCE)
    assert not torch.equal(model.encode(SOURCE).states, memory.states)
    assert not torch.equal(model.decode(TARGET_IN, memory), model.decode(TARGET_IN, memory))


def test_dropout_falls_on_the_input_of_every_layer_and_of_the_output():
    model = build(dropout=0.5).train()
    inputs = []
    for module in [*model.encoder, *model.decoder, model.output]:
        module.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    model(SOURCE, TARGET_IN)
    assert len(inputs) == 6
    for x in inputs:
        assert 0.2 < (x == 0).double().mean() < 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_it_has_the_size_of_the_transformer_of_the_same_configuration(kind):
    tiny = ModelConfig(encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, num_heads=4)
    theirs = Transformer(tiny, 10_000, 10_000, PAD)
    ours = RecurrentModel(replace(tiny, architecture="recurrent", attention=kind), 10_000, 10_000, PAD)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in (ours, theirs)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


@pytest.mark.parametrize("kind, length", [("dot_product", 3), ("additive", 3), ("none", 2)])
def test_it_learns_to_reverse_a_sentence(kind, length):
    """From a loss of ln 9 = 2.2."""
    torch.manual_seed(0)
    config = replace(TINY, attention=kind, encoder_layers=1, decoder_layers=2, d_model=32, dropout=0.0)
    model = RecurrentModel(config, V, V, PAD)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(120):
        source = torch.randint(4, V, (32, length))
        target = torch.cat([torch.full((32, 1), BOS), source.flip(1)], 1)
        loss = cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.2
