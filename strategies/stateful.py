"""FedAvg whose server keeps one set of named arrays between rounds."""

from typing import Any

from strategies.aggregate import Arrays
from strategies.fedavg import FedAvg


class StatefulFedAvg(FedAvg):
    """The method computes `kept` in each round; checkpoints contain it under the same names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: Arrays = {}  # empty until the first round ends

    def state(self) -> Arrays:
        """Return the kept arrays."""
        return dict(self.kept)

    def load_state(self, state: Arrays) -> None:
        """Restore the kept arrays."""
        self.kept = dict(state)
