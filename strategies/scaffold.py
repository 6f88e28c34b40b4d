"""SCAFFOLD: a server control variate, updated by the clients' (Karimireddy et al. 2020)."""

from collections.abc import Sequence

import numpy as np

from strategies.aggregate import Arrays
from strategies.stateful import StatefulFedAvg

CONTROL = "control"


class Scaffold(StatefulFedAvg):
    """c <- c + (M / N) uniform mean of the changes of c_i; the model as in FedAvg.

    Algorithm 1 of the paper with server step length 1. c is `kept`; it is zero, and not sent, until
    the first round ends. It has the shapes of the trained parameters; buffers have no control
    variate.
    """

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send c."""
        return {CONTROL: self.kept} if self.kept else {}

    def averaged(self) -> dict[str, Arrays]:
        """Request the changes of the clients' control variates."""
        return {CONTROL: {name: np.zeros_like(self._global[name]) for name in self.trained}}

    def use_means(self, means: dict[str, Arrays]) -> None:
        """Update c; the factor is M / N because other clients' control variates do not change."""
        share = len(self.report.results) / self.federation.training_clients
        self.kept = {
            name: self.kept.get(name, np.float32(0)) + np.float32(share) * mean
            for name, mean in means[CONTROL].items()
        }
