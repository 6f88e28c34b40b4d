"""SCAFFOLD's clients: every gradient is corrected by the client's and the server's control variate.

The correction is one tensor per parameter, computed once per round. It costs one addition per step.
"""

import numpy as np
import torch
from torch import Tensor

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.training.sgd import effective_steps
from clients.update import Update

CONTROL = "control"


class ScaffoldClient(LocalClient):
    """g <- g - c_i + c in every step; c_i is kept (Karimireddy et al. 2020, ICML, algorithm 1).

    After K steps c_i changes by (w_g - w_i) / (K_eff lr) - c (option II). The client sends this
    change. Without momentum K_eff is K. Weight decay and momentum act on the corrected gradient.
    """

    kept_copies = 1
    recordable = True

    def prepare(self, server_round: int) -> None:
        """Compute c - c_i; both start at zero."""
        zeros = {name: np.zeros(tensor.shape, np.float32) for name, tensor in self.trained.items()}
        self._own = self.stored_state or zeros
        self._server = self.extras.get(CONTROL, zeros)
        differences = {name: self._server[name] - self._own[name] for name in self.trained}
        self._correction = self.on_device(differences)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the corrected gradients of one batch."""
        loss = super().gradients(forward, objective)
        torch._foreach_add_(self.trained_gradients(), self._correction)
        return loss

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Update c_i and send its change with the model."""
        length = effective_steps(update.training.steps, self.settings.momentum) * lr
        change = {
            n: (received[n] - update.shared[n]) / length - self._server[n] for n in self.trained
        }
        update.groups = {CONTROL: change}
        update.state = {name: self._own[name] + change[name] for name in self.trained}
