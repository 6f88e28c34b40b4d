"""Clients with a personal model, which they keep between rounds and never send.

Before training a client loads its model from its stored state, or starts from initial weights. All
clients of an architecture share the initial weights unless each has its own. After training the
client stores the model. Each method defines what its clients send, if anything.
"""

from typing import Any

from torch import Tensor

from clients.arrays import Arrays
from clients.keeping import KeepingClient
from clients.update import Update

AFTER_DOWNLOAD = "after-download"


class PersonalClient(KeepingClient):
    """Local training of a personal model, whose shared tensors, if any, start as received."""

    def __init__(self, *args: Any, evaluate_when: str = "round-end", **kwargs: Any) -> None:
        """Prepare a client; `evaluate_when` selects the shared tensors for an evaluation.

        "round-end": the client's own after its last training. "after-download": the received ones,
        as if the next round had begun. Other arguments as `LocalClient`.
        """
        super().__init__(*args, **kwargs)
        self.evaluates_received = evaluate_when == AFTER_DOWNLOAD

    def prepare(self, server_round: int) -> None:
        """Load the personal model; keep the received tensors."""
        self.recall(keep_received=True)

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the personal model; raises `LossDiverged` if it is not finite."""
        self.model.zero_grad(set_to_none=True)  # other clients' models need the memory
        super().finish(received, update, lr)

    def personalise(self, server_round: int, lr: float) -> None:
        """Load the personal model as it is after the round."""
        self.recall(keep_received=self.evaluates_received)

    def own_tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the personal model, BatchNorm's statistics included."""
        return dict(self.model.state_dict())

    def recall(self, keep_received: bool) -> None:
        """Load the stored or the initial model; `keep_received` leaves the shared tensors alone."""
        self.start_own(but=self.shared if keep_received else ())
