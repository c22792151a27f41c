"""Mechanisms combined: any two choices that a model may have at once keep what makes it a translation model.

The models below hold every allowed pair of choices somewhere; pairs that are refused are written out.
"""

import copy
from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

from models.config import ModelConfig
from models.encoder_decoder import EncoderDecoder
from models.loss import projected_cross_entropy
from models.recurrent import RecurrentModel
from models.transformer import Transformer

TINY = dict(d_model=8, d_ff=12, num_heads=4, max_positions=16, max_distance=2, random_features=6)
FACTORS = [
    [dict(positions=name) for name in ("sinusoidal", "learned", "rotary", "shaw", "alibi", "none")],
    [dict(attention=name) for name in ("dot_product", "additive", "performer", "elu")],
    [dict(attention_kernel=name) for name in ("auto", "plain", "flex")],
    [dict(attention_window=0), dict(attention_window=3), dict(attention_window=3, global_positions=2)],
    [dict(num_key_value_heads=count) for count in (0, 1, 2)],
    [dict(activation=name) for name in ("relu", "gelu", "swiglu")],
    [dict(tied_embeddings=name) for name in ("none", "target", "all")],
    [dict(norm_order=name) for name in ("post", "pre")],
    [dict(norm=name) for name in ("layer", "rms")],
    [dict(encoder_layers=1, decoder_layers=3), dict(encoder_layers=3, decoder_layers=1)],
]
REFUSED = {
    ("positions=rotary", "attention=additive"): "positions=sinusoidal",
    ("positions=rotary", "attention=elu"): "positions=sinusoidal",
    ("positions=shaw", "attention=additive"): "positions=sinusoidal",
    ("positions=shaw", "attention=performer"): "positions=sinusoidal",
    ("positions=shaw", "attention=elu"): "positions=sinusoidal",
    ("positions=alibi", "attention=performer"): "positions=sinusoidal",
    ("positions=alibi", "attention=elu"): "positions=sinusoidal",
    ("positions=shaw", "attention_kernel=flex"): "attention_kernel=auto",
    ("positions=shaw", "attention_window=3 global_positions=2"): "global_positions=0",
    ("positions=alibi", "attention_window=3 global_positions=2"): "global_positions=0",
    ("attention=additive", "attention_kernel=flex"): "attention_kernel=auto",
    ("attention=performer", "attention_kernel=flex"): "attention_kernel=auto",
    ("attention=elu", "attention_kernel=flex"): "attention_kernel=auto",
    ("attention=performer", "attention_window=3"): "attention_window=0",
    ("attention=performer", "attention_window=3 global_positions=2"): "attention_window=0",
    ("attention=elu", "attention_window=3"): "attention_window=0",
    ("attention=elu", "attention_window=3 global_positions=2"): "attention_window=0",
}
"""Pairs of choices, and what to set instead."""


def label(choice: dict) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


CHOICES = {label(choice): choice for factor in FACTORS for choice in factor}
PAIRS = [
    (label(choice), label(other))
    for factor, other_factor in combinations(FACTORS, 2)
    for choice in factor
    for other in other_factor
]
ALLOWED = [pair for pair in PAIRS if pair not in REFUSED]


def configuration(labels: list[str], **choices) -> ModelConfig:
    for name in labels:
        choices |= CHOICES[name]
    return ModelConfig(**TINY | choices)


def covering() -> list[list[str]]:
    """Greedily, few combinations that hold all allowed pairs: each begins with a pair that is still missing, and takes
    of every other factor the choice that brings the most missing pairs."""
    order = {name: number for number, name in enumerate(CHOICES)}
    allowed, missing, found = set(ALLOWED), dict.fromkeys(ALLOWED), []
    while missing:
        taken = list(next(iter(missing)))
        for factor in FACTORS:
            options = [label(choice) for choice in factor]
            if set(options).isdisjoint(taken):
                pairs = {option: {tuple(sorted((option, name), key=order.get)) for name in taken} for option in options}
                possible = [option for option in options if pairs[option] <= allowed]
                taken.append(max(possible, key=lambda option: len(pairs[option] & missing.keys())))
        taken.sort(key=order.get)
        missing = dict.fromkeys(pair for pair in missing if pair not in set(combinations(taken, 2)))
        found.append(taken)
    return found


COVERING = covering()
MODELS = {" ".join(labels): configuration(labels) for labels in COVERING}
MODELS |= {
    f"architecture=recurrent attention={attention} layers={encoder}/{decoder}": ModelConfig(
        **TINY, architecture="recurrent", attention=attention, encoder_layers=encoder, decoder_layers=decoder
    )
    for attention, encoder, decoder in [("dot_product", 1, 3), ("additive", 3, 1), ("additive", 2, 2), ("none", 2, 2)]
}


def test_every_allowed_pair_of_choices_is_in_some_model():
    held = {pair for labels in COVERING for pair in combinations(labels, 2)}
    assert held == set(ALLOWED)
    assert len(COVERING) <= 30


def test_the_pairs_that_are_refused_are_those_above_each_with_a_remedy():
    def remedy(pair: tuple[str, str]) -> str:
        try:
            configuration(pair)
        except ValueError as error:
            return str(error).partition(": set model.")[2]
        return ""

    assert {pair: found for pair in PAIRS if (found := remedy(pair))} == REFUSED


@pytest.mark.parametrize(
    "choices, message",
    [
        (dict(positions="shaw", attention="elu"), "positions=shaw does not go with model.attention=elu"),
        (dict(attention="elu", attention_dropout=0.1), "attention_dropout=0.1 does not go with model.attention=elu"),
        (dict(attention="performer", attention_dropout=0.1), "attention=performer: set model.attention_dropout=0"),
        (dict(attention_kernel="flex", attention_dropout=0.1), "flex: set model.attention_dropout=0"),
        (dict(attention="additive", attention_kernel="fused"), "attention_kernel=fused does not go"),
        (dict(attention="none"), "model.attention=none needs model.architecture=recurrent"),
        (dict(global_positions=1), "model.global_positions=1 are exceptions to a window: set model.attention_window"),
        (dict(attention_window=-1), "model.attention_window=-1 must be 0 or more"),
        (dict(num_key_value_heads=3), "model.num_key_value_heads=3 must divide model.num_heads=4"),
        (dict(positions="rotary", num_heads=8), "over model.num_heads=8 gives heads of odd width 1"),
        (dict(random_features=0), "model.random_features=0 must be at least 1"),
    ],
)
def test_a_choice_that_cannot_be_is_named_with_its_value_and_a_remedy(choices, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**TINY | choices)


PAD, V = 0, 13
SOURCE = torch.tensor([[4, 5, 6, 7, 8, 9, 3], [8, 9, 7, 5, 3, 0, 0], [10, 3, 0, 0, 0, 0, 0]])
TARGET_IN = torch.tensor([[2, 4, 5, 6, 7, 8, 9, 10], [2, 7, 11, 0, 0, 0, 0, 0], [2, 8, 9, 5, 4, 6, 0, 0]])
TARGET_OUT = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 3], [7, 11, 3, 0, 0, 0, 0, 0], [8, 9, 5, 4, 6, 3, 0, 0]])
"""Longer than the window, and than the window with the global positions."""
LENGTHS = [(7, 8), (5, 3), (2, 6)]
EXACT = dict(atol=1e-11, rtol=1e-11)


@pytest.fixture(params=MODELS.values(), ids=MODELS, scope="module")
def model(request) -> EncoderDecoder:
    torch.manual_seed(0)
    build = {"transformer": Transformer, "recurrent": RecurrentModel}[request.param.architecture]
    model = build(request.param, V, V, PAD).double().eval()
    for parameter in model.parameters():  # biases and gains too, which begin where they change nothing
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.5)
    return model


@pytest.mark.parametrize("dtype, close", [(torch.float64, EXACT), (torch.float32, dict(atol=1e-4, rtol=1e-4))])
@torch.no_grad()
def test_a_step_is_a_row_of_the_full_pass_whatever_rows_are_kept(model, dtype, close):
    """Beams are copied, crossed over and left out, a sentence leaves the batch, and one beam of each may be asked
    about alone; in 32 bits, some of this is compiled."""
    model = copy.deepcopy(model).to(dtype)
    going = torch.arange(3)  # the sentences still in the batch
    state = model.start(model.encode(SOURCE)).select(going[:, None].expand(-1, 2))
    prefixes = torch.empty(3, 2, 0, dtype=torch.long)
    for position in range(8):
        tokens = torch.randint(1, V, (len(going), 2, 1))
        prefixes = torch.cat([prefixes, tokens], dim=-1)
        asked = torch.arange(2 * len(going)).view(-1, 2)
        if position in (2, 4, 5):
            asked = asked.gather(1, torch.randint(2, (len(going), 1)))
            state = state.only(asked.flatten())
        logits, state = model.step(tokens.view(-1, 1)[asked.flatten()], state)
        full = model(SOURCE[going].repeat_interleave(2, dim=0), prefixes.flatten(0, 1))
        assert_close(logits, full[asked.flatten(), -1], **close)

        kept = torch.tensor([0, 2]) if position == 4 else torch.arange(len(going))
        chosen = torch.randint(2, (len(kept), 2)) if asked.size(1) == 2 else (asked % 2)[kept].expand(-1, 2)
        state = state.select(kept[:, None] * 2 + chosen)
        going, prefixes = going[kept], prefixes[kept[:, None], chosen]


@torch.no_grad()
def test_padding_and_batch_mates_change_no_logits(model):
    together = model(SOURCE, TARGET_IN)
    for row, (source_length, target_length) in enumerate(LENGTHS):
        alone = model(SOURCE[row : row + 1, :source_length], TARGET_IN[row : row + 1, :target_length])
        assert_close(together[row, :target_length], alone[0], **EXACT)


@torch.no_grad()
def test_a_target_token_counts_from_its_position_on_and_never_before(model):
    before = model(SOURCE[:1], TARGET_IN[:1])
    for t, after in enumerate(model(SOURCE[:1].expand(8, -1), each_replaced(TARGET_IN[:1]))):
        moved = (after - before[0]).abs().amax(-1)
        assert (moved[:t] < 1e-11).all() and moved[t] > 1e-9


@torch.no_grad()
def test_every_source_token_counts(model):
    before = model(SOURCE[:1], TARGET_IN[:1])
    after = model(each_replaced(SOURCE[:1]), TARGET_IN[:1].expand(7, -1))
    assert ((after - before).abs().amax(-1) > 1e-9).all()


def each_replaced(ids):
    """As many rows as there are tokens, another one replaced in each."""
    return ids.expand(ids.size(1), -1).clone().fill_diagonal_(12)


def test_nothing_is_learned_at_padding(model):
    """From reading it, that is: where the same table holds the output's weights, padding is learned not to be said."""
    read = []
    tables = {model.source_embedding, model.target_embedding}
    hooks = [table.register_forward_hook(lambda _, ids, vectors: read.append((*ids, vectors))) for table in tables]
    hidden = model.decode(TARGET_IN, model.encode(SOURCE))
    for hook in hooks:
        hook.remove()
    loss, _ = projected_cross_entropy(hidden, model.output_weight, TARGET_OUT, smoothing=0.1, pad_id=PAD)
    assert len(read) == 2
    gradients = torch.autograd.grad(loss, [vectors for _, vectors in read])
    for (ids, _), gradient in zip(read, gradients, strict=True):
        assert torch.equal(gradient.abs().sum(-1) > 0, ids != PAD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_source_of_padding_alone_leaves_its_neighbours_and_all_gradients_sound(model, dtype):
    """In 16 bits too, and with scores that are fifty times too large."""
    model = copy.deepcopy(model).to(dtype)
    for name, parameter in model.named_parameters():
        if "query" in name and parameter.dim() > 1:
            parameter.data *= 50
    source = torch.tensor([[4, 5, 3], [0, 0, 0]])
    logits = model(source, TARGET_IN[:2])
    logits.float().square().mean().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    alone = model(source[:1], TARGET_IN[:1])
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    assert (logits[:1] - alone).float().norm() <= tolerance * alone.float().norm()
