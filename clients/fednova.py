"""FedNova's clients: their update divided by how far their steps could have carried it."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from clients.base import Arrays, LocalClient, nbytes
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.training.sgd import effective_steps
from clients.update import Update


class FedNovaClient(LocalClient):
    """Sends d_i = (w_g - w_i) / a_i in place of w_i; buffers travel as they are.

    a_i = |a_i|_1 of SGD with momentum; it goes into the report. Source: Wang et al. 2020, NeurIPS,
    equation 6 and section 4. With the correction "own" the client keeps its mean gradient d_i / lr
    and subtracts it from every gradient of its next training; weight decay and momentum act on the
    difference. That is what the code of FedNTD (Lee et al. 2022, NeurIPS) does: a correction as
    SCAFFOLD's, of which the server's part stays zero.
    """

    def __init__(self, *args: Any, correction: str = "none", **kwargs: Any) -> None:
        """Prepare a client; `correction` is "none" or "own", other arguments as `LocalClient`."""
        super().__init__(*args, **kwargs)
        self.corrects = correction == "own"

    def prepare(self, server_round: int) -> None:
        """Recall the own last mean gradient; there is none until the client has trained."""
        self._correction = self.on_device(self.recalled) if self.recalled else []

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch, corrected if there is a correction."""
        loss = super().gradients(forward, objective)
        if self._correction:
            torch._foreach_sub_(self.trained_gradients(), self._correction)
        return loss

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Send the normalised change of the trained parameters in place of them."""
        update.extra = effective_steps(update.training.steps, self.settings.momentum)
        changes = {
            name: (received[name] - update.shared[name]) / update.extra for name in self.trained
        }
        if self.corrects:
            update.state = {name: change / np.float32(lr) for name, change in changes.items()}
        update.shared = {**update.shared, **changes}

    def state_bytes(self) -> int:
        """Return the size of the mean gradient that is kept, and of what the objective keeps."""
        own = nbytes(self.trained.values()) if self.corrects else 0
        return super().state_bytes() + own
