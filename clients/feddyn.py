"""FedDyn's clients: each client adds its own linear and quadratic term to the loss.

The terms' gradient costs one scaled addition of the parameters and one of a tensor that is computed
once per round.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.update import Update


class FedDynClient(LocalClient):
    """Trains loss - <g_i, w> + alpha/2 |w - w_g|^2; keeps g_i <- g_i - alpha (w_i - w_g).

    g_i has the shapes of the trained parameters and starts at zero. The reported training loss
    excludes both terms. Source: Acar et al. 2021, ICLR, algorithm 1.
    """

    kept_copies = 1
    recordable = True

    def __init__(self, *args: Any, alpha: float, **kwargs: Any) -> None:
        """Prepare a client; `alpha` weighs the quadratic term, other arguments as `LocalClient`."""
        super().__init__(*args, **kwargs)
        self.alpha = alpha

    def prepare(self, server_round: int) -> None:
        """Compute g_i + alpha w_g, the constant part of the terms' gradient."""
        zeros = {name: np.zeros(tensor.shape, np.float32) for name, tensor in self.trained.items()}
        self._own = self.stored_state or zeros
        self._constant = self.on_device(self._own)
        torch._foreach_add_(self._constant, self._parameters(), alpha=self.alpha)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch: of the loss, and alpha (w - w_g) - g_i."""
        loss = super().gradients(forward, objective)
        gradients = self.trained_gradients()
        torch._foreach_add_(gradients, self._parameters(), alpha=self.alpha)
        torch._foreach_sub_(gradients, self._constant)
        return loss

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Update g_i."""
        trained = update.shared
        update.state = {
            name: self._own[name] - np.float32(self.alpha) * (trained[name] - received[name])
            for name in self.trained
        }

    def _parameters(self) -> list[Tensor]:
        return [tensor.detach() for tensor in self.trained.values()]
