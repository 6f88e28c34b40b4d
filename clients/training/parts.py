"""Which parameters of a model are trained: its body, its head, all of it, or less than those.

Personal methods train the parts at different times, with the others fixed. A fixed part also leaves
the optimiser, so that neither momentum nor weight decay moves it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

BODY, HEAD, ALL = "body", "head", "all"
ROWS, ALL_BUT_ROWS, BOTTLENECK = "rows", "all but rows", "bottleneck"

_BELONGS: dict[str, Callable[[str], bool]] = {
    ALL: lambda name: True,
    BODY: lambda name: not name.startswith("head."),
    HEAD: lambda name: name.startswith("head."),
    ROWS: lambda name: name == "head.weight",  # the head's, without its bias or scale
    ALL_BUT_ROWS: lambda name: name != "head.weight",
    BOTTLENECK: lambda name: name.startswith("bottleneck."),
}


def in_part(name: str, part: str) -> bool:
    """Return whether a parameter of this name belongs to a part of the model."""
    return _BELONGS[part](name)


@contextmanager
def training_only(model: nn.Module, part: str) -> Iterator[None]:
    """Let just one part of a model, a word above, require gradients inside the block.

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
