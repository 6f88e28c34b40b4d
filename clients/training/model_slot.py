"""The models and the data access that a process lends to its clients in turn.

A client is built for every message. The expensive objects are here and outlive the clients.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from clients.training.arrays import floating
from clients.training.local_training import Batches, LocalSettings
from clients.training.objective import Objective


@dataclass(frozen=True)
class Tuning:
    """One stage of a client's fine-tuning of the global model before its evaluation."""

    objective: Objective
    settings: LocalSettings
    lr: float
    part: str  # the trained part of the model, a name of clients.training.parts


@dataclass
class ModelSlot:
    """The model that a process lends to each of its clients in turn, and more of its kind."""

    model: nn.Module
    shared: Mapping[str, Tensor]  # the tensors of `model` that are sent, by name
    settings: LocalSettings
    build: Callable[[], nn.Module]  # makes another model of the same kind, with initial weights
    tuning: tuple[Tuning, ...] = ()  # the stages of fine-tuning, in this order
    build_for: Callable[[int], nn.Module] | None = None  # with a client's initial weights
    _spares: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return next(self.model.parameters()).device

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Seed torch's own generators, which dropout uses, in the block; restore them afterwards.

        They are those of the CPU and of the model's GPU.
        """
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(seed)
            for gpu in gpus:
                torch.cuda.default_generators[gpu.index].manual_seed(seed)
            yield

    def spare(self, name: str) -> nn.Module:
        """Return a further model of the same kind, in eval mode, its parameters without gradients.

        `build` makes it at the first call of this name, with initial weights. Later its weights are
        those that were loaded last.
        """
        if name not in self._spares:
            self._spares[name] = self.build().requires_grad_(False).eval()
        return self._spares[name]

    def initial(self, client: int) -> nn.Module:
        """Return a frozen model with a client's initial weights, in eval mode."""
        if self.build_for is None:
            return self.spare("initial")
        return self.build_for(client).requires_grad_(False).eval()

    @property
    def teacher(self) -> nn.Module:
        """The further model for the received weights."""
        return self.spare("teacher")

    @property
    def unsent(self) -> dict[str, Tensor]:
        """The floating tensors of `model` that are neither sent nor frozen, by name."""
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
    examples: Callable[[int], Batches]  # round -> its training examples, without augmentation
    mixed: Callable[[int], Batches]  # the same in the tests' batches, with their mix of classes
    test: Callable[[], Batches]  # the client's own test split
    num_examples: int
    class_counts: Tensor  # [C], training examples of each class in this round
    all_counts: Tensor  # [C], the same in a round without a missing class
    seed: Callable[[int], int] = int  # round -> seed of other random numbers, such as dropout's


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy every parameter and buffer of a model to another of the same kind, in place."""
    for copy, tensor in zip(_state(target), _state(source), strict=True):
        copy.copy_(tensor)
    target.eval()


def _state(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
