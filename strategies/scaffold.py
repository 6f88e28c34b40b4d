"""SCAFFOLD: a server control variate, updated by the clients' (Karimireddy et al. 2020)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg

CONTROL = "control"


class Scaffold(FedAvg):
    """c <- c + (M / N) uniform mean of the changes of c_i; the model as in FedAvg.

    Algorithm 1 of the paper with server step length 1. c is zero, and not sent, until the first
    round ends. It has the shapes of the trained parameters; buffers have no control variate.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._control: Arrays = {}

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send c."""
        return {CONTROL: self._control} if self._control else {}

    def averaged(self) -> dict[str, Arrays]:
        """Request the changes of the clients' control variates."""
        return {CONTROL: {name: np.zeros_like(self._global[name]) for name in self.trained}}

    def use_means(self, means: dict[str, Arrays]) -> None:
        """Update c; the factor is M / N because other clients' control variates do not change."""
        share = len(self.report.results) / len(self.federation.nodes)
        self._control = {
            name: self._control.get(name, np.float32(0)) + np.float32(share) * mean
            for name, mean in means[CONTROL].items()
        }

    def state(self) -> Arrays:
        """Return c."""
        return dict(self._control)

    def load_state(self, state: Arrays) -> None:
        """Restore c."""
        self._control = dict(state)
