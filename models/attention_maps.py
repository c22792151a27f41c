"""The attention weights of a model on given sentences, asked for after the fact: pictures and alignments need them.

The model computes as always, on its fused kernels. torch's forward hooks, there for this one pass, note what each
attention was given; the weights are computed from that.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from models.masks import Mask
from models.multi_head_attention import CrossAttention, SelfAttention


class AttentionMaps(NamedTuple):
    """Weights by layer, from the first; a model without some kind of attention has no layers of that kind."""

    encoder: list[Float[Tensor, "batch heads source source"]]
    decoder: list[Float[Tensor, "batch heads target target"]]
    cross: list[Float[Tensor, "batch heads target source"]]


@torch.no_grad()
def attention_maps(
    model: nn.Module, source: Int[Tensor, "batch source"], target_in: Int[Tensor, "batch target"]
) -> AttentionMaps:
    """How much each position attends to each, in ``model.eval()``'s forced decoding of ``target_in``."""
    maps = AttentionMaps([], [], [])
    with listening(model, SelfAttention, lambda module, x, mask, *_: maps.encoder.append(module.weights(x, mask))):
        memory = model.encode(source)
    mask = Mask(memory.keys)
    with (
        listening(model, SelfAttention, lambda module, x, mask, *_: maps.decoder.append(module.weights(x, mask))),
        listening(
            model, CrossAttention, lambda module, x, *_: maps.cross.append(module.weights(x, memory.states, mask))
        ),
    ):
        model.decode(target_in, memory)
    return maps


@contextmanager
def listening(model: nn.Module, kind: type[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    """Calls ``note(module, *arguments)`` for each module of this kind that runs meanwhile."""
    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, kind):
                handle = module.register_forward_hook(lambda module, arguments, _: note(module, *arguments))
                hooks.callback(handle.remove)
        yield
