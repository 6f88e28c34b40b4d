"""FedDOR's client: a cosine head with orthogonal initial rows, features pulled to prototypes."""

from typing import Any

import torch
from torch import Tensor, nn

from clients.arrays import Arrays
from clients.prototype_client import PrototypeClient
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.update import Update

_SMALLEST_SCALE = 1e-3


class FedDORClient(PrototypeClient):
    """λ_CE CE(s cos(f, θ), y) + λ_align L_align; only prototypes and class ids are sent.

    Source: FedDOR, the client's loss and equations 5 and 6.
    """

    def __init__(self, *args: Any, ce_weight: float, kind: str, **kwargs: Any) -> None:
        """Prepare a client; `ce_weight` is λ_CE, `kind` as `class_means`."""
        super().__init__(*args, **kwargs)
        self.ce_weight, self.kind = ce_weight, kind

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Clamp the head's scale to a positive value, then set the gradients of one batch."""
        self._keep_scale_positive()
        return super().gradients(forward, objective)

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Store the model and upload the prototypes."""
        self._keep_scale_positive()
        super().finish(received, update, lr)

    @torch.no_grad()
    def _keep_scale_positive(self) -> None:
        scale = self.model.get_submodule("head").scale
        if isinstance(scale, nn.Parameter):
            scale.clamp_(min=_SMALLEST_SCALE)


class CountingFedDORClient(FedDORClient):
    """FedDOR without generator: the server averages prototypes weighted by the uploaded counts."""

    counted = True
