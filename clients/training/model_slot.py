"""What a process lends to its clients in turn: models that stay in place, and access to data.

Clients are built for every message; what is expensive lives here and outlives them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clients.training.arrays import floating
from clients.training.local_training import Batches, LocalSettings
from clients.training.objective import Objective


@dataclass(frozen=True)
class Tuning:
    """How a client fine-tunes the global model before it is evaluated, or one of several ways."""

    objective: Objective
    settings: LocalSettings
    lr: float
    part: str  # of the model that is trained, a word of clients.training.parts


@dataclass
class ModelSlot:
    """What a process lends to each of its clients in turn: a model, and frozen copies of it."""

    model: nn.Module
    shared: Mapping[str, Tensor]  # the tensors of `model` that travel, by name
    settings: LocalSettings
    build: Callable[[], nn.Module]  # makes another model of the same kind, with initial weights
    tuning: tuple[Tuning, ...] = ()  # how clients make the final model their own, in this order
    build_for: Callable[[int], nn.Module] | None = None  # as `build`, with a client's own weights
    _copies: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    def copy(self, name: str) -> nn.Module:
        """Return the frozen model of this name, in eval mode, made at the first call."""
        if name not in self._copies:
            self._copies[name] = self.build().requires_grad_(False).eval()
        return self._copies[name]

    def initial(self, client: int) -> nn.Module:
        """Return a model with the weights that a client starts from."""
        return self.build_for(client) if self.build_for else self.copy("initial")

    @property
    def teacher(self) -> nn.Module:
        """The copy that holds the received model."""
        return self.copy("teacher")

    @property
    def private(self) -> dict[str, Tensor]:
        """The floating tensors of `model` that neither travel nor are frozen, by name."""
        return {
            name: tensor
            for name, tensor in floating(self.model).items()
            if name not in self.shared
            and (tensor.requires_grad or not isinstance(tensor, nn.Parameter))
        }


@dataclass(frozen=True)
class ClientData:
    """One client's examples, as functions that give batches of images and labels."""

    training: Callable[[int], Callable[[], Batches]]  # round -> the batches of its next epoch
    tuning: Callable[[int], Callable[[], Batches]]  # the same examples for personalisation
    examples: Callable[[], Batches]  # the training examples, in order and as they are
    test: Callable[[], Batches]  # the client's own test split
    num_examples: int
    class_counts: Tensor  # [C], training examples of each class
    seed: Callable[[int], int] = int  # round -> seed of what else is random, such as dropout


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer of a model into another of the same kind, in place."""
    for copy, tensor in zip(_state(target), _state(source), strict=True):
        copy.copy_(tensor)
    target.eval()


def _state(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
