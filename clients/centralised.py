"""Centralised training: one client has all data, and its momentum continues across rounds.

In federated training each round starts without momentum, because it starts from a mean of models. A
single client starts each round from its own model. With its momentum kept, its rounds are the
epochs of a plain training loop.
"""

import torch

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.arrays import to_arrays
from clients.training.local_training import check_finite
from clients.update import Update


class CentralisedClient(LocalClient):
    """Keeps the velocity of SGD with momentum, float32 in the shapes of the trained parameters.

    The velocity starts at zero, so that the first step equals that of a new optimiser bit for bit.
    """

    kept_copies = 1

    def prepare(self, server_round: int) -> None:
        """Load the velocity at the end of the last round, or zeros."""
        stored = self.stored_state
        zeros = [torch.zeros_like(tensor) for tensor in self.trained.values()]
        self.velocity = self.on_device(stored) if stored else zeros

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Keep the velocity; raises `LossDiverged` if it is not finite."""
        velocity = self.velocity or []
        update.state = to_arrays(dict(zip(self.trained, velocity, strict=True)))
        check_finite(update.state, "the momentum", update.training.steps)
