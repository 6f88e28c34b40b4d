"""A client's own model after its last round, for objectives that compare with it (MOON).

The client's state contains it in addition to the method's own state, under a prefix of its own, so
that any method can be trained with such an objective.
"""

from typing import NamedTuple

from torch import nn

from clients.arrays import Arrays
from clients.training.arrays import floating, load_arrays, to_arrays
from clients.training.model_slot import ModelSlot

_PREFIX = "previous/"


class Stored(NamedTuple):
    """What a client has stored."""

    own: Arrays  # the method's state
    previous: Arrays  # the client's last model, by the names of its tensors


def taken_from(model: nn.Module) -> Arrays:
    """Return copies of a model's floating tensors, with their names in the state."""
    return {f"{_PREFIX}{name}": array for name, array in to_arrays(floating(model)).items()}


def split(stored: Arrays) -> Stored:
    """Divide a stored state into the method's state and the previous model, without its prefix."""
    own = {name: array for name, array in stored.items() if not name.startswith(_PREFIX)}
    previous = {n.removeprefix(_PREFIX): array for n, array in stored.items() if n not in own}
    return Stored(own, previous)


def load(slot: ModelSlot, stored: Arrays, client: int) -> nn.Module:
    """Return the previous model, frozen; before the client's first round, the initial one.

    The paper leaves that case open. In its authors' code a first round has no previous model, which
    is the same: with equal models the loss has no gradient. Later it is a random network there.
    """
    if not stored:
        return slot.initial(client)
    model = slot.spare("previous")
    load_arrays(floating(model), stored)
    return model
