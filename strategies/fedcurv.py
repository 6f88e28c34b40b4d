"""FedCurv: what mattered to a round's clients goes to the next ones (Shoham et al. 2019)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg

IMPORTANCE, WEIGHTED, OF = "importance", "importance-weighted", "importance-of"


class FedCurv(FedAvg):
    """The model as in FedAvg; sums over the last round's clients of u_j and of u_j w_j are sent on.

    Who is in the sums is sent too: such a client takes its own part out of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sent: dict[str, Arrays] = {}

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send both sums, and whose they are; nothing in the first round."""
        return self._sent

    def averaged(self) -> dict[str, Arrays]:
        """Ask for u_i and u_i w_i."""
        shapes = {name: np.zeros_like(self._global[name]) for name in self.trained}
        return {IMPORTANCE: shapes, WEIGHTED: shapes}

    def take_means(self, means: dict[str, Arrays]) -> None:
        """Keep the sums for the next round."""
        clients = np.array([result.client for result in self.report.results], np.int64)
        sums = {
            group: {name: mean * np.float32(len(clients)) for name, mean in arrays.items()}
            for group, arrays in means.items()
        }
        self._sent = {**sums, OF: {"clients": clients}}

    def state(self) -> Arrays:
        """Return what the next round's clients are sent."""
        return {f"{g}/{name}": a for g, arrays in self._sent.items() for name, a in arrays.items()}

    def load_state(self, state: Arrays) -> None:
        """Take back what the next round's clients are sent."""
        self._sent = {}
        for label, array in state.items():
            group, _, name = label.partition("/")
            self._sent.setdefault(group, {})[name] = array
