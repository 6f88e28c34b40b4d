"""FedSOL's clients: they take the gradient of the loss where the global model pulls most.

Each step perturbs the weights along the gradient of the pull, computes the gradient of the loss
there and applies it to the original weights. It takes two forward and two backward passes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clients.base import LocalClient
from clients.training.displacement import along, displaced
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.training.parts import frozen_statistics, in_part


class FedSOLClient(LocalClient):
    """Gradient of the base loss at w + rho A g_p / ||g_p||; g_p is the gradient of the pull.

    Only the first pass updates the running statistics of BatchNorm.
    Source: FedSOL (Lee G. et al. 2024, CVPR), the perturbed gradient.
    """

    recordable = True

    def __init__(self, *args: Any, rho: float, adaptive: bool, part: str, **kwargs: Any) -> None:
        """Prepare a client.

        Args:
            args, kwargs: as `LocalClient`.
            rho: length of the perturbation.
            adaptive: A is |w - w_g| normalised along its first dimension; otherwise 1.
            part: the part of the model that is perturbed, a name of `clients.training.parts`.
        """
        super().__init__(*args, **kwargs)
        self.rho, self.adaptive, self.part = rho, adaptive, part

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the base loss at the perturbed weights."""
        step = forward()
        objective.regularisation(step).backward()
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        indices = [i for i, name in enumerate(names) if in_part(name, self.part)]
        weights = [step.parameters[i] for i in indices]
        anchors = [step.global_parameters[i] for i in indices]
        moves = perturbation(weights, anchors, self.rho, self.adaptive)
        for parameter in step.parameters:
            parameter.grad = None
        with displaced(weights, moves), frozen_statistics(self.model):
            loss = objective.base_loss(forward(watched=False))
            loss.backward()
        return loss.detach()


@torch.no_grad()
def perturbation(
    weights: Sequence[Tensor], anchors: Sequence[Tensor], rho: float, adaptive: bool
) -> list[Tensor]:
    """Return rho A g / (||g|| + 1e-12) for the gradients g of the weights, one per weight.

    The norm is that of all gradients together. Where w = w_g nothing moves: with `adaptive` A is 0.
    Without it g is only rounding error there, so all perturbations are 0 if all weights equal w_g.
    """
    pairs = list(zip(weights, anchors, strict=True))
    if not adaptive:
        differs = torch.stack([(w != a).any() for w, a in pairs]).any()
        return along(weights, rho * differs.to(weights[0].dtype))
    moves = along(weights, rho)
    torch._foreach_mul_(moves, [F.normalize((w - a).abs(), dim=0, eps=1e-12) for w, a in pairs])
    return moves
