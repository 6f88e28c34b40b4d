"""FedCurv: the server passes on the clients' parameter importances (Shoham et al. 2019)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg
from strategies.rounds.named_arrays import strip_prefix

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
        self._importances: dict[str, Arrays] = {}  # both sums; {} in round 1
        self._clients = np.zeros(0, np.int64)  # ids of the clients in the sums

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send both sums and the ids of their clients; nothing in the first round."""
        return {**self._importances, OF: {"clients": self._clients}} if self._importances else {}

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
        if self.accumulate and self._importances:
            clients = np.union1d(clients, self._clients)
            for group, arrays in sums.items():
                for name, array in arrays.items():
                    array += self._importances[group][name]
        self._importances, self._clients = sums, clients

    def state(self) -> Arrays:
        """Return the sums and ids for the next round."""
        sent = self.extras(())
        return {f"{g}/{name}": a for g, arrays in sent.items() for name, a in arrays.items()}

    def load_state(self, state: Arrays) -> None:
        """Restore the sums and ids for the next round."""
        groups = {group: strip_prefix(state, f"{group}/") for group in (IMPORTANCE, WEIGHTED)}
        self._importances = {group: arrays for group, arrays in groups.items() if arrays}
        self._clients = state.get(f"{OF}/clients", self._clients)
