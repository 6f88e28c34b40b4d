"""The parts of a model that are trained: body, head, all of it, or smaller parts.

Personalised methods train the parts at different times, with the other parts fixed. The optimiser
does not get a fixed part, so that neither momentum nor weight decay changes it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

BODY, HEAD, ALL = "body", "head", "all"
ROWS, ALL_BUT_ROWS, BOTTLENECK = "rows", "all but rows", "bottleneck"

_BELONGS: dict[str, Callable[[str], bool]] = {
    ALL: lambda name: True,
    BODY: lambda name: not name.startswith("head."),
    HEAD: lambda name: name.startswith("head."),
    ROWS: lambda name: name == "head.weight",  # the head's weight, without its bias or scale
    ALL_BUT_ROWS: lambda name: name != "head.weight",
    BOTTLENECK: lambda name: name.startswith("bottleneck."),
}

PARTS = tuple(_BELONGS)


def in_part(name: str, part: str) -> bool:
    """Return whether a parameter of this name belongs to a part of the model."""
    return _BELONGS[part](name)


@contextmanager
def training_only(model: nn.Module, part: str) -> Iterator[None]:
    """Let only one part of a model, a name above, require gradients inside the block.

    This unfreezes a frozen head that is in the part, but no layer that the network itself freezes
    (`Model.frozen`). After the block every `requires_grad` flag is
    restored and all gradients are cleared.
    """
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    frozen = getattr(model, "frozen", ())
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(in_part(name, part) and name not in frozen)
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
            parameter.grad = None


@contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's running statistics unchanged; the normalisation of batches is as usual.

    Inside the block the layers update copies, so that the gradients of what it computes may also be
    taken after it.
    """
    layers = [m for m in model.modules() if getattr(m, "running_mean", None) is not None]
    kept = [(m, name, own) for m in layers for name, own in m.named_buffers(recurse=False)]
    for layer, name, own in kept:
        setattr(layer, name, own.clone())
    try:
        yield
    finally:
        for layer, name, own in kept:
            setattr(layer, name, own)
