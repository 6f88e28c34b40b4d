"""What a row may take from the app to build its strategy and clients, beside configuration keys."""

from collections.abc import Mapping
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
        """The orthogonal rows W [C, K] at which heads without hidden layer start."""

    def orthogonal(self, width: int, seed: int) -> Tensor:
        """Return orthogonal rows [C, width] of a seed."""

    def header(self, hidden: int) -> nn.Module:
        """Return a new head, as a server trains it; `hidden` is its hidden width, 0 for none."""


@dataclass(frozen=True)
class MethodSetup:
    """One run, as the rows of the method table see it."""

    values: Mapping[str, Any]  # the configuration by key
    num_classes: int
    model: nn.Module  # of the first client, with its initial weights
    own_models: OwnModels | None = None  # set where clients have architectures of their own

    def number(self, key: str) -> int:
        """Return a whole number of the configuration."""
        return int(self.values[key])

    def personal(self) -> OwnModels:
        """Return the clients' own models; raises ValueError where all have the same one."""
        if self.own_models is None:
            raise ValueError("the clients of this method have no models of their own")
        return self.own_models
