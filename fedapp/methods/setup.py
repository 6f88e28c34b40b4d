"""What a row uses, in addition to configuration keys, to build its strategy and clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from fedapp.models.groups import ModelGroup


class OwnModels(Protocol):
    """The models of clients with architectures of their own."""

    group: ModelGroup

    @property
    def rows(self) -> np.ndarray:
        """The orthogonal rows W [C, K] that initialise heads without a hidden layer."""

    def orthogonal(self, width: int, seed: int) -> Tensor:
        """Return orthogonal rows [C, width], drawn from a seed."""

    def header(self, hidden: int) -> nn.Module:
        """Return a new head that a server trains; `hidden` is its hidden width, 0 for no layer."""


@dataclass(frozen=True)
class MethodSetup:
    """The parts of one run that a row of the method table uses."""

    values: Mapping[str, Any]  # the configuration by key
    num_classes: int
    model: nn.Module  # of the first client, with initial weights
    new_model: Callable[[int], nn.Module]  # builds the global model with the weights of a draw
    own_models: OwnModels | None = None  # set where clients have architectures of their own

    def number(self, key: str) -> int:
        """Return an integer value of the configuration."""
        return int(self.values[key])

    def heterogeneous(self) -> OwnModels:
        """Return the clients' own models; raises ValueError if all clients have the same model."""
        if self.own_models is None:
            raise ValueError("the clients of this method have no models of their own")
        return self.own_models
