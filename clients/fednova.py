"""FedNova's clients: they divide their update by their number of effective steps."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.training.sgd import effective_steps
from clients.update import Update


class FedNovaClient(LocalClient):
    """Sends d_i = (w_g - w_i) / a_i instead of w_i; buffers are sent unchanged.

    a_i = |a_i|_1 of SGD with momentum; the report contains it. Source: Wang et al. 2020, NeurIPS,
    equation 6 and section 4. With the correction "own" the client keeps d_i / lr, the mean of its
    corrected gradients, and subtracts it from every gradient of its next training. Weight decay and
    momentum act on the difference. The code of FedNTD (Lee et al. 2022, NeurIPS) does this.
    """

    recordable = True
    unfit_regularisers: ClassVar[Mapping[str, str]] = {
        "prox": "the number of steps that normalises its updates does not count the pull of 'prox'"
    }

    def __init__(self, *args: Any, correction: str, **kwargs: Any) -> None:
        """Prepare a client; `correction` is "none" or "own", other arguments as `LocalClient`."""
        super().__init__(*args, **kwargs)
        self.corrects = correction == "own"
        self.kept_copies = int(self.corrects)

    def prepare(self, server_round: int) -> None:
        """Load the client's last mean gradient; there is none before its first training."""
        self._correction = self.on_device(self.stored_state) if self.stored_state else []

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch and subtract the correction, if there is one."""
        loss = super().gradients(forward, objective)
        if self._correction:
            torch._foreach_sub_(self.trained_gradients(), self._correction)
        return loss

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Replace the trained parameters in the update by their normalised changes."""
        steps = effective_steps(update.training.steps, self.settings.momentum)
        update.effective_steps = steps
        changes = {name: (received[name] - update.shared[name]) / steps for name in self.trained}
        if self.corrects:
            update.state = {name: change / np.float32(lr) for name, change in changes.items()}
        update.shared = {**update.shared, **changes}
