"""Which keys a query may see, said as a small value and rendered only where a kernel needs a tensor.

True means "may attend", everywhere in the project. Four queries over four keys::

    causal      causal, window 2    window 2      two queries over four keys, causal: aligned at the end
    1 . . .     1 . . .             1 1 . .
    1 1 . .     1 1 . .             1 1 1 .       1 1 1 .
    1 1 1 .     . 1 1 .             . 1 1 1       1 1 1 1
    1 1 1 1     . . 1 1             . . 1 1

    window 2, one global    causal, window 2, one global
    1 1 1 1                 1 . . .
    1 1 1 .                 1 1 . .
    1 1 1 1                 1 1 1 .
    1 . 1 1                 1 . 1 1
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """The keys a query may see: real tokens, not the future, not too far away. No argument given hides nothing."""

    keys: Bool[Tensor, "batch keys"] | None = None
    """[B, Lk], True at real tokens."""

    causal: bool = False
    """Hide the keys after the query."""

    window: int | None = None
    """How far a query looks to either side (causal: back), itself included."""

    num_global: int = 0
    """With a window: so many first positions see all others and are seen by all (causal: by the later ones)."""

    def dense(
        self, num_queries: int, num_keys: int, device: torch.device | None = None
    ) -> Bool[Tensor, "#batch 1 #queries keys"] | None:
        """The mask as a tensor that broadcasts to [B, H, Lq, Lk]; None where nothing can be hidden (which is known
        without looking at the tensor, so without waiting for the device).

        The last query sits on the last key, so the mask of a cached step is the last row of the mask of the full pass.
        """
        visible = None if self.keys is None else self.keys[:, None, None, :]
        if self.window is not None or (self.causal and num_queries > 1):
            query = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
            key = torch.arange(num_keys, device=device)
            near = (key < query + self.window) & (key > query - self.window) if self.window is not None else key >= 0
            near = near | (key < self.num_global) | (query < self.num_global)
            if self.causal:
                near = near & (key <= query)
            visible = near[None, None] if visible is None else visible & near
        return visible

    @cached_property
    def bias(self) -> Float[Tensor, "batch 1 1 keys"]:
        """What hides the keys that are not real when it is added to scores; nothing, where none is real."""
        hidden = ~(self.keys | ~self.keys.any(-1, keepdim=True))
        return torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -float("inf"))[:, None, None]

    @cached_property
    def sighted(self) -> Float[Tensor, "batch 1 1 1"] | None:
        """0 for sentences without a real key, else 1; None where every sentence has one. Waits for the device."""
        sighted = self.keys.any(-1)
        return None if sighted.all() else sighted.float()[:, None, None, None]

    def softmax(self, scores: Float[Tensor, "batch heads queries keys"]) -> Float[Tensor, "batch heads queries keys"]:
        """Softmax over the visible keys; a row that sees no key is all zeros, and so is its gradient."""
        visible = self.dense(scores.size(-2), scores.size(-1), scores.device)
        if visible is None:
            return scores.softmax(dim=-1)
        # Not -inf, which would make a row without visible keys NaN on the way.
        return scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(dim=-1).masked_fill(~visible, 0)
