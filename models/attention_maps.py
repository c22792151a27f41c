"""The attention weights of a model on given sentences, asked for after the fact: pictures and alignments need them.

The model computes as always, on its fused kernels. torch's forward hooks, there for this one pass, note what each
attention was given; the weights are computed from that.
"""

from contextlib import ExitStack
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
    with ExitStack() as listening:

        def listen(kind: type[nn.Module], note) -> None:
            for module in model.modules():
                if isinstance(module, kind):
                    listening.callback(module.register_forward_hook(note).remove)

        layers = maps.encoder
        listen(SelfAttention, lambda module, given, _: layers.append(module.weights(*given[:2])))
        memory = model.encode(source)
        mask = Mask(memory.keys)
        layers = maps.decoder
        listen(CrossAttention, lambda module, given, _: maps.cross.append(module.weights(given[0], memory.states, mask)))
        model.decode(target_in, memory)
    return maps
