"""Label-smoothed cross-entropy (Szegedy et al., 2016) over real tokens.

With ε of the probability spread evenly over all V words, the loss of one token with logits z and target y is

    logsumexp(z) - (1 - ε) z_y - ε mean(z)         and its gradient         softmax(z) - (1 - ε) onehot(y) - ε / V.

``label_smoothed_cross_entropy`` is that. ``projected_cross_entropy`` is the same function of the states before the
output projection z = h Wᵀ. It never holds all logits: it takes a few rows at a time and their gradients on the spot,
while the rows are still in the cache (on a GPU: in little memory).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

LOGITS_PER_PRODUCT = {"cpu": 2**23, "cuda": 2**27}
"""Rows are multiplied together up to this many logits: large products are fast, but 2^27 take 512 MB in 32 bits."""

LOGITS_PER_SOFTMAX = {"cpu": 2**20, "cuda": 2**27}
"""The passes between the products go over this many at a time: 4 MB stay in a CPU's cache."""


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "*batch vocabulary"], target: Int[Tensor, "*batch"], smoothing: float, pad_id: int
) -> Float[Tensor, ""]:
    """The sum over all real tokens (``target != pad_id``) of the loss in nats."""
    return F.cross_entropy(
        logits.flatten(0, -2), target.flatten(), ignore_index=pad_id, label_smoothing=smoothing, reduction="sum"
    )


def projected_cross_entropy(
    hidden: Float[Tensor, "*batch d_model"],
    weight: Float[Tensor, "vocabulary d_model"],
    target: Int[Tensor, "*batch"],
    smoothing: float,
    pad_id: int,
    product_dtype: torch.dtype | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """``label_smoothed_cross_entropy(hidden @ weight.T, ...)``, and the same without smoothing, for the perplexity.

    The second value carries no gradient. The three products with the vocabulary are taken in ``product_dtype`` (by
    default autocast's, or that of ``hidden``); everything else, sums over pieces included, in 32 bits or more.
    """
    device = hidden.device.type
    if product_dtype is None:
        product_dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    real = target != pad_id
    if hidden.is_cpu:
        hidden, target, real = hidden[real], target[real], real[real]
    else:  # selecting rows would make the host wait for the device: padded rows become zeros that count for nothing
        hidden, target, real = hidden.flatten(0, -2), target.flatten(), real.flatten()
        hidden, target = hidden.where(real.unsqueeze(-1), 0), target.where(real, 0)
    with_gradient = torch.is_grad_enabled()  # inside the function it is always off
    with torch.autocast(device, enabled=False):
        return _ProjectedCrossEntropy.apply(hidden, weight, target, real, smoothing, product_dtype, with_gradient)


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, target, real, smoothing, product_dtype, with_gradient):
        hidden_grad, weight_grad = (with_gradient and needed for needed in ctx.needs_input_grad[:2])
        exact = torch.promote_types(hidden.dtype, torch.float32)
        num_words = len(weight)
        rows, few = (
            max(1, min(len(hidden), limit.get(hidden.device.type, limit["cuda"]) // num_words))
            for limit in (LOGITS_PER_PRODUCT, LOGITS_PER_SOFTMAX)
        )
        # Written over again and again: fresh memory of this size costs a CPU more than the arithmetic done in it.
        products = hidden.new_empty(rows, num_words, dtype=product_dtype)
        scratch = hidden.new_empty(2, few, num_words, dtype=exact)

        states, words = hidden.to(product_dtype), weight.to(product_dtype)
        uniform = weight.sum(0, dtype=exact) * (smoothing / num_words)  # h @ uniform is ε mean(z)
        if weight_grad:
            d_weight = (hidden.sum(0, dtype=exact) * (-smoothing / num_words)).repeat(num_words, 1)
        logsumexp, hits, d_hidden = [], [], []
        for h, y in zip(states.split(rows), target.unsqueeze(-1).split(rows), strict=True):
            z = torch.mm(h, words.T, out=products[: len(h)])  # [rows, V]
            for z_few, y_few in zip(z.split(few), y.split(few), strict=True):
                logits = scratch[0, : len(z_few)].copy_(z_few)
                p = torch.softmax(logits, dim=-1, out=scratch[1, : len(z_few)])
                logsumexp.append(logits.amax(-1) - p.amax(-1).log())
                hits.append(logits.gather(-1, y_few).squeeze(-1))
                if hidden_grad or weight_grad:
                    p.scatter_add_(-1, y_few, torch.full_like(y_few, smoothing - 1, dtype=exact))
                    z_few.copy_(p)
            # z now holds its own gradient but for -ε / V, a term of rank one that needs no pass over the vocabulary.
            if hidden_grad:
                d_hidden.append((z @ words).to(exact) - uniform)
            if weight_grad:
                d_weight += z.T @ h

        ctx.save_for_backward(
            torch.cat(d_hidden).where(real.unsqueeze(-1), 0).to(hidden.dtype) if hidden_grad else None,
            d_weight.to(weight.dtype) if weight_grad else None,
        )
        logsumexp, z_y = torch.cat(logsumexp), torch.cat(hits)
        smoothed = logsumexp - (1 - smoothing) * z_y - hidden.to(exact) @ uniform
        smoothed, nll = (losses.where(real, 0).sum() for losses in (smoothed, logsumexp - z_y))
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss, _):
        d_hidden, d_weight = (None if gradient is None else gradient * d_loss for gradient in ctx.saved_tensors)
        return d_hidden, d_weight, None, None, None, None, None
