"""FedSAM's clients: they take the gradient of the loss where the loss rises most.

Sharpness-aware minimisation of the local loss. Each step takes two forward and two backward passes.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from clients.base import LocalClient
from clients.training.displacement import along, displaced
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.training.parts import frozen_statistics


class FedSAMClient(LocalClient):
    """Gradient of the loss at w + rho g / ||g||, g the gradient of the loss at w.

    Only the first pass updates the running statistics of BatchNorm.
    Source: Qu et al. 2022, ICML, algorithm 1 (FedSAM).
    """

    recordable = True

    def __init__(self, *args: Any, rho: float, **kwargs: Any) -> None:
        """Prepare a client; `rho` is the length of the perturbation, others as `LocalClient`."""
        super().__init__(*args, **kwargs)
        self.rho = rho

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the loss at the perturbed weights; returns the loss there."""
        step = forward()
        objective(step).backward()
        weights = list(step.parameters)
        with displaced(weights, along(weights, self.rho)), frozen_statistics(self.model):
            moved = replace(
                forward(watched=False),
                global_features=step.global_features,  # those of frozen models stay
                global_logits=step.global_logits,
                previous_features=step.previous_features,
            )
            loss = objective(moved)
            loss.backward()
        return loss.detach()
