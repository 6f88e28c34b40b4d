"""Centralised training: one client has all data, and its SGD goes on from round to round.

In a federation momentum ends with the round, because the next one starts from a mean of models. One
client alone starts from its own model, so keeping the momentum makes its rounds those of a plain
training loop.
"""

import torch

from clients.base import LocalClient, check_finite, nbytes
from clients.training.arrays import Arrays, to_arrays
from clients.update import Update


class CentralisedClient(LocalClient):
    """Keeps the velocity of SGD with momentum, float32 in the shapes of the trained parameters.

    It starts at zero: the first step is then that of a new optimiser, to the bit.
    """

    def prepare(self, server_round: int) -> None:
        """Take up the velocity where the last round left it."""
        kept = self.recalled
        zeros = [torch.zeros_like(tensor) for tensor in self.trained.values()]
        self.velocity = self.on_device(kept) if kept else zeros

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the velocity; raises `LossDiverged` if it is not finite."""
        velocity = self.velocity or []
        update.state = to_arrays(dict(zip(self.trained, velocity, strict=True)))
        check_finite(update.state, "the momentum", update.training.steps)

    def state_bytes(self) -> int:
        """Return the size of the velocity, and of what the objective keeps."""
        return super().state_bytes() + nbytes(self.trained.values())
