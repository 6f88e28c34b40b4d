"""Clients that keep a part of the model, or all of it, instead of sending it.

A client keeps the part of its model that is not shared. One class therefore serves FedPer, which
keeps the head, and local training, which keeps everything. FedRep also trains its parts in turn.
"""

from clients.base import Arrays, LocalClient, check_finite, nbytes
from clients.training.arrays import load_arrays, to_arrays
from clients.update import Update


class PersonalPartClient(LocalClient):
    """Keeps the unshared part between its rounds; a new client starts from the initial model.

    Source: FedPer (Arivazhagan et al. 2019), personalisation layers.
    """

    def prepare(self, server_round: int) -> None:
        """Load the client's own part of the model from its stored state."""
        self._recall()

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the client's own part; raises `LossDiverged` if it is not finite."""
        update.state = to_arrays(self.slot.private)
        check_finite(update.state, "the personal part", update.training.steps)

    def state_bytes(self) -> int:
        """Return the size of the client's own part."""
        return super().state_bytes() + nbytes(self.slot.private.values())

    def personalise(self, server_round: int, lr: float) -> None:
        """Add the client's own part to the received one."""
        self._recall()

    def _recall(self) -> None:
        initial = self.slot.copy("initial").state_dict()
        private = self.slot.private
        load_arrays(private, self.stored_state or to_arrays({n: initial[n] for n in private}))
