"""The server of pFedMe: a step towards the clients' mean."""

from typing import Any

from strategies.aggregate import Arrays, difference
from strategies.fedavg import FedAvg


class PFedMe(FedAvg):
    """w <- (1 - beta) w_g + beta mean, for trained parameters; buffers are averaged.

    Source: pFedMe (T. Dinh et al. 2020, NeurIPS), algorithm 1.
    """

    def __init__(self, *args: Any, beta: float, **kwargs: Any) -> None:
        """Prepare a strategy; `beta` is the length of its step. Other arguments as `FedAvg`."""
        super().__init__(*args, **kwargs)
        self.beta = beta

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Return the moved model."""
        return self.stepped(received, difference(mean, received), mean, self.beta)
