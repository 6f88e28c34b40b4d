"""Two models on one client that teach each other: its own, and a small one that is shared.

The pair is trained as one module, so that one backward pass and one optimiser serve both.
"""

from typing import Any

import torch
from torch import Tensor, nn

from clients.personal_model import PersonalClient
from clients.training.local_training import Forward
from clients.training.objective import Objective

INBOX = "mentee"  # as strategies.fedkd has it; neither side imports the other
_CLIP_NORM = 10.0  # of each module's gradient, in FedKD and FML


class Pair(nn.Module):
    """A personal model and its mentee, and possibly a linear map between their features.

    Calling it gives the personal model's features and logits; in training the mentee sees the same
    images and its outputs are in `seen`.
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
            self.seen = self.mentee(inputs)
        features, logits = self.personal(inputs)
        return features, logits


class PairClient(PersonalClient):
    """Trains both models on the sum of their losses, each module's gradient clipped to norm 10."""

    takes_regulariser = False

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the personal model's loss and the mentee's."""
        raise NotImplementedError

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch; the loss that is reported is the personal model's."""
        step = forward()
        own, other = self.losses(step.features, step.logits, step.labels)
        (own + other).backward()
        for module in self.model.children():
            nn.utils.clip_grad_norm_(module.parameters(), _CLIP_NORM)
        return own.detach()
