"""Clients that keep tensors of their own between rounds, such as a personal model or head.

The tensors are in the client's state after its training, and it loads them before it needs them.
"""

from torch import Tensor

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.arrays import load_arrays, nbytes, to_arrays
from clients.training.local_training import check_finite
from clients.update import Update


class KeepingClient(LocalClient):
    """Local training beside tensors that the client keeps and never sends: `own_tensors`."""

    kept = "its model"  # what they are, for errors

    def own_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that the client keeps, by their names in its state."""
        raise NotImplementedError

    def recall_own(self) -> bool:
        """Load them in place; return False, with nothing loaded, for a new client."""
        if not self.stored_state:
            return False
        load_arrays(self.own_tensors(), self.stored_state)
        return True

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the tensors; raises `LossDiverged` if one is not finite."""
        update.state = to_arrays(self.own_tensors())
        check_finite(update.state, self.kept, update.training.steps)

    def state_bytes(self) -> int:
        """Return the size of the tensors and of the objective's state."""
        return super().state_bytes() + nbytes(self.own_tensors().values())
