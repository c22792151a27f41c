"""Functions over arrays that numba compiles: the loops of decoding on a CPU that torch has no fast operation for."""

from collections.abc import Callable
from functools import partial

import numba
import torch
from torch import Tensor


def compiled(function: Callable) -> Callable:
    """Compiled when it is first called, and kept for processes to come, where there is a folder for that.

    Sums may be taken in another order than written; NaN and infinity are what they are elsewhere.
    """
    compile = partial(numba.njit, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp", "nsz"})
    try:
        return compile(cache=True)(function)
    except RuntimeError:  # neither this folder nor a home can be written to
        return compile()(function)


def compiles(x: Tensor) -> bool:
    """Whether a compiled function can take this: what decoding on a CPU computes in 32 bits."""
    return x.is_cpu and x.dtype == torch.float32 and not torch.is_grad_enabled()
