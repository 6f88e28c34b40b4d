"""Clients that keep a part of the model, or all of it, instead of sending it.

A client keeps the part of its model that is not shared. One class therefore serves FedPer, which
keeps the head, FedBN, which keeps the normalisation layers, and local training, which keeps
everything. FedRep also trains its parts in turn.
"""

from torch import Tensor

from clients.personal_model import PersonalClient


class PersonalPartClient(PersonalClient):
    """Keeps the unshared part between its rounds; a new client starts from the initial model.

    Source: FedPer (Arivazhagan et al. 2019), personalisation layers.
    """

    kept = "the personal part"

    def own_tensors(self) -> dict[str, Tensor]:
        """Return the floating tensors that are neither sent nor frozen."""
        return self.slot.unsent
