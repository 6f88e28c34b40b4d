"""Clients that keep tensors of their own between rounds, such as a personal model or head.

The tensors are in the client's state after its training, and it loads them before it needs them.
"""

from collections.abc import Container, Mapping

import torch
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

    def initial_own(self) -> Mapping[str, Tensor]:
        """Return the values that they have before the client's first training, and maybe more."""
        return self.slot.initial(self.client).state_dict()

    def recall_own(self, but: Container[str] = ()) -> bool:
        """Load them in place, `but` those named; return False, with none loaded, if it is new."""
        if self.stored_state:
            load_arrays(self._own_but(but), self.stored_state)
        return bool(self.stored_state)

    @torch.no_grad()
    def start_own(self, but: Container[str] = ()) -> None:
        """Load them as `recall_own`; those of a new client get their initial values."""
        if not self.recall_own(but):
            initial = self.initial_own()
            for name, tensor in self._own_but(but).items():
                tensor.copy_(initial[name])

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the tensors; raises `LossDiverged` if one is not finite."""
        update.state = to_arrays(self.own_tensors())
        check_finite(update.state, self.kept, update.training.steps)

    def state_bytes(self) -> int:
        """Return the size of the tensors and of the objective's state."""
        return super().state_bytes() + nbytes(self.own_tensors().values())

    def _own_but(self, but: Container[str]) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.own_tensors().items() if name not in but}
