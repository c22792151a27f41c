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

_LOGITS_PER_PIECE = {"cpu": 2**21, "cuda": 2**27}
"""8 MB of 32-bit logits stay in a CPU's last cache; a GPU wants large products and has the memory for them."""


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
        rows = max(1, _LOGITS_PER_PIECE.get(hidden.device.type, _LOGITS_PER_PIECE["cuda"]) // num_words)
        rows = min(rows, max(1, len(hidden)))
        # Written over by every piece: fresh memory of this size costs a CPU more than the arithmetic done in it.
        products = hidden.new_empty(rows, num_words, dtype=product_dtype)
        logits_buffer = products if product_dtype == exact else products.to(exact)
        probabilities = torch.empty_like(logits_buffer)

        weight_in_products = weight.to(product_dtype)
        uniform = weight.sum(0, dtype=exact) * (smoothing / num_words)
        smoothed, nll, d_hidden = [], [], []
        if weight_grad:
            d_weight = (hidden.sum(0, dtype=exact) * (-smoothing / num_words)).repeat(num_words, 1)
        for h, y in zip(hidden.split(rows), target.unsqueeze(-1).split(rows), strict=True):
            n = len(h)
            product = torch.mm(h.to(product_dtype), weight_in_products.T, out=products[:n])  # [n, V]
            logits = product if product.dtype == exact else logits_buffer[:n].copy_(product)
            p = torch.softmax(logits, dim=-1, out=probabilities[:n])
            logsumexp = logits.amax(-1) - p.amax(-1).log()
            z_y = logits.gather(-1, y).squeeze(-1)
            nll.append(logsumexp - z_y)
            smoothed.append(logsumexp - (1 - smoothing) * z_y - h.to(exact) @ uniform)
            if not (hidden_grad or weight_grad):
                continue
            p.scatter_add_(-1, y, torch.full_like(y, smoothing - 1, dtype=exact))
            p = p if product_dtype == exact else product.copy_(p)
            if hidden_grad:
                d_hidden.append((p @ weight_in_products).to(exact) - uniform)
            if weight_grad:
                d_weight += p.T @ h.to(product_dtype)
        ctx.save_for_backward(
            torch.cat(d_hidden).where(real.unsqueeze(-1), 0).to(hidden.dtype) if hidden_grad else None,
            d_weight.to(weight.dtype) if weight_grad else None,
        )
        nll = torch.cat(nll).where(real, 0).sum()
        ctx.mark_non_differentiable(nll)
        return torch.cat(smoothed).where(real, 0).sum(), nll

    @staticmethod
    @once_differentiable
    def backward(ctx, d_loss, _):
        d_hidden, d_weight = (None if gradient is None else gradient * d_loss for gradient in ctx.saved_tensors)
        return d_hidden, d_weight, None, None, None, None, None
