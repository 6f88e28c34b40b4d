"""Two models on one client that teach each other: a personal model and a small shared one.

The pair is trained as one module, with one backward pass and one optimiser.
"""

from typing import Any

import torch
from torch import Tensor, nn

from clients.personal_model import PersonalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective

EXTRA = "mentee"  # the same name as in strategies.fedkd; neither package imports the other
_CLIP_NORM = 10.0  # of each module's gradient, in FedKD and FML


class Pair(nn.Module):
    """A personal model and its mentee, with an optional linear map between their features.

    `forward` returns the personal model's features and logits. In training it also runs the mentee
    on the same images and stores its features and logits in `seen`, in float32 for the losses.
    """

    def __init__(self, personal: nn.Module, mentee: nn.Module, transform: nn.Module | None) -> None:
        super().__init__()
        self.personal, self.mentee, self.transform = personal, mentee, transform
        self.seen: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @property
    def head(self) -> Any:
        """The personal model's head."""
        return self.personal.get_submodule("head")

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map images [B, channels, H, W] to the personal features [B, K] and logits [B, C]."""
        if self.training:
            features, logits = self.mentee(inputs)
            self.seen = features.float(), logits.float()
        features, logits = self.personal(inputs)
        return features, logits


class PairClient(PersonalClient):
    """Trains both models on the sum of their losses, each module's gradient clipped to norm 10."""

    takes_regulariser = False
    recordable = True

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the personal model's loss and the mentee's."""
        raise NotImplementedError

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch; the returned loss is the personal model's."""
        step = forward()
        own, other = self.losses(step.features, step.logits, step.labels)
        (own + other).backward()
        for module in self.model.children():
            nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
        return own.detach()
