"""SCAFFOLD: a control variate on the server that follows the clients' (Karimireddy et al. 2020)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg

CONTROL = "control"


class Scaffold(FedAvg):
    """c <- c + (M / N) mean of c_i's movements, each client once; the model as in FedAvg.

    Algorithm 1 of the paper with the server's step length 1. c is zero, and not sent, until the
    first clients have moved it. It has the shapes of the trained parameters; buffers have none.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._control: Arrays = {}

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send c to everyone."""
        return {CONTROL: self._control} if self._control else {}

    def averaged(self) -> dict[str, Arrays]:
        """Ask for the movements of the clients' control variates."""
        return {CONTROL: {name: np.zeros_like(self._global[name]) for name in self.trained}}

    def take_means(self, means: dict[str, Arrays]) -> None:
        """Move c; clients that did not take part keep theirs, hence M / N."""
        share = len(self.report.results) / len(self.federation.nodes)
        self._control = {
            name: self._control.get(name, np.float32(0)) + np.float32(share) * mean
            for name, mean in means[CONTROL].items()
        }

    def state(self) -> Arrays:
        """Return c."""
        return dict(self._control)

    def load_state(self, state: Arrays) -> None:
        """Take back c."""
        self._control = dict(state)
