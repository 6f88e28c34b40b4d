"""FedCurv: the server passes on the clients' parameter importances (Shoham et al. 2019)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg

IMPORTANCE, WEIGHTED, OF = "importance", "importance-weighted", "importance-of"


class FedCurv(FedAvg):
    """FedAvg that also sends the sums of u_j and of u_j w_j over the last round's clients.

    The ids of these clients are sent too, so that each of them can subtract its own part. With
    `accumulate` the sums are over all clients so far, each with its latest u_j. A client that is
    already in the sums sends the change since its last training. The server adds what it receives
    and needs no client's own part.
    """

    def __init__(self, *args: Any, accumulate: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accumulate = accumulate
        self._sent: dict[str, Arrays] = {}

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send both sums and the ids of their clients; nothing in the first round."""
        return self._sent

    def averaged(self) -> dict[str, Arrays]:
        """Request u_i and u_i w_i."""
        shapes = {name: np.zeros_like(self._global[name]) for name in self.trained}
        return {IMPORTANCE: shapes, WEIGHTED: shapes}

    def use_means(self, means: dict[str, Arrays]) -> None:
        """Keep the sums for the next round, or add them to those of earlier rounds."""
        clients = np.array([result.client for result in self.report.results], np.int64)
        sums = {
            group: {name: mean * np.float32(len(clients)) for name, mean in arrays.items()}
            for group, arrays in means.items()
        }
        if self.accumulate and self._sent:
            clients = np.union1d(clients, self._sent[OF]["clients"])
            for group, arrays in sums.items():
                for name, array in arrays.items():
                    array += self._sent[group][name]
        self._sent = {**sums, OF: {"clients": clients}}

    def state(self) -> Arrays:
        """Return the sums and ids for the next round."""
        return {f"{g}/{name}": a for g, arrays in self._sent.items() for name, a in arrays.items()}

    def load_state(self, state: Arrays) -> None:
        """Restore the sums and ids for the next round."""
        self._sent = {}
        for label, array in state.items():
            group, _, name = label.partition("/")
            self._sent.setdefault(group, {})[name] = array
