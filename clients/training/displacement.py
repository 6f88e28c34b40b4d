"""Temporary, exactly reversible displacements of parameters, for two-pass gradient rules.

Adding a displacement and subtracting it again would leave rounding errors in the weights. Here the
old values are kept and restored, so that a displacement of zero changes no bit of the training.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def displaced(parameters: Sequence[Tensor], steps: Sequence[Tensor]) -> Iterator[None]:
    """Add one step [same shape] to each parameter inside the block; clears their gradients.

    This clears autocast's cache of low-precision copies at the start and at the end of the block.
    """
    with torch.no_grad():
        kept = [parameter.clone() for parameter in parameters]
        torch._foreach_add_(list(parameters), list(steps))
    torch.clear_autocast_cache()
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(parameters), kept)
        torch.clear_autocast_cache()


@torch.no_grad()
def along(weights: Sequence[Tensor], length: float | Tensor) -> list[Tensor]:
    """Return length * g / (||g|| + 1e-12) for the gradients g of the weights, one per weight.

    The norm is that of all gradients together.
    """
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return list(torch._foreach_mul(gradients, length / (norm + 1e-12)))
