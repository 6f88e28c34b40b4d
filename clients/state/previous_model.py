"""A client's own model after its last round, for objectives that look back at it (MOON).

It lies in the client's state beside what the method itself keeps, under names of its own, so that
any method can be trained with such an objective.
"""

from typing import Protocol

from torch import nn

from clients.training.arrays import Arrays, floating, load_arrays, to_arrays

_PREFIX = "previous/"


class Copies(Protocol):
    """Gives frozen models by name; a new one has the initial weights."""

    def copy(self, name: str) -> nn.Module:
        """Return the model of this name."""


def taken_from(model: nn.Module) -> Arrays:
    """Return copies of a model's floating tensors, named as they are stored."""
    return {f"{_PREFIX}{name}": array for name, array in to_arrays(floating(model)).items()}


def split(stored: Arrays) -> tuple[Arrays, Arrays]:
    """Divide a stored state into what the method keeps, and the previous model by its own names."""
    own = {name: array for name, array in stored.items() if not name.startswith(_PREFIX)}
    return own, {
        name.removeprefix(_PREFIX): array for name, array in stored.items() if name not in own
    }


def load(slot: Copies, stored: Arrays) -> nn.Module:
    """Return the previous model, frozen; before the first participation, the initial one.

    The paper leaves that case open; its authors' code takes the model of the first round.
    """
    if not stored:
        return slot.copy("initial")
    model = slot.copy("previous")
    load_arrays(floating(model), stored)
    return model
