"""Which parameters of a model are trained: its body, its head, or all of it.

Personal methods train the two parts at different times, with the other one fixed. A fixed part also
leaves the optimiser, so that neither momentum nor weight decay moves it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

BODY, HEAD, ALL = "body", "head", "all"
PARTS = (BODY, HEAD, ALL)


def in_part(name: str, part: str) -> bool:
    """Return whether a parameter of this name belongs to a part of the model."""
    return part == ALL or (part == HEAD) == name.startswith("head.")


@contextmanager
def training_only(model: nn.Module, part: str) -> Iterator[None]:
    """Let just one part of a model (`body`, `head` or `all`) require gradients inside the block.

    A frozen head is unfrozen if the part has it. Afterwards every parameter is as it was.
    """
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(in_part(name, part))
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
            parameter.grad = None


@contextmanager
def still_statistics(model: nn.Module) -> Iterator[None]:
    """Keep the running statistics of BatchNorm as they are; batches are normalised as before."""
    layers = [m for m in model.modules() if getattr(m, "running_mean", None) is not None]
    kept = [[buffer.clone() for buffer in layer.buffers()] for layer in layers]
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, buffers in zip(layers, kept, strict=True):
                for buffer, value in zip(layer.buffers(), buffers, strict=True):
                    buffer.copy_(value)
