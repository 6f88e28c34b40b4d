"""FedRoD: a head that all clients share for all classes, and a head of each client's own."""

from typing import Any

import torch
from torch import Tensor, nn

from clients.keeping import KeepingClient
from clients.training.local_training import Forward, TrainingResult
from clients.training.model_slot import copy_weights
from clients.training.objective import Objective
from clients.training.sgd import FusedSGD


class FedRoDClient(KeepingClient):
    """The model learns the balanced softmax, and the own head CE of the sum of both heads' logits.

    No gradient of the own head's loss reaches the model. The own head is linear in the model's
    features and starts at zero, so that a client that has never trained predicts with the received
    model. The client keeps its head and predicts with the sum of the logits, which is one linear
    head whose weights are the sums.
    Source: FedRoD (Chen and Chao 2022, ICLR), its balanced and its personalised loss, linear head.
    """

    takes_regulariser = False
    kept = "the client's own head"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        shared = self.model.get_parameter("head.weight")
        self.head = {
            "weight": nn.Parameter(torch.zeros_like(shared)),
            "bias": nn.Parameter(torch.zeros_like(shared[:, 0])),
        }

    def prepare(self, server_round: int) -> None:
        """Load the client's own head."""
        self.recall_own()

    def run(self, server_round: int, lr: float) -> TrainingResult:
        """Train the model and the client's head on the same batches."""
        settings = self.settings
        self._sgd = FusedSGD(list(self.head.values()), lr, settings.momentum, settings.weight_decay)
        return super().run(server_round, lr)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of the model, and take the step of the client's own head."""
        step = forward()
        loss = objective(step)
        own = nn.functional.linear(step.features.detach(), self.head["weight"], self.head["bias"])
        logits = step.logits.detach() + own.float()
        self._sgd.zero_grad()
        (loss + nn.functional.cross_entropy(logits, step.labels)).backward()
        if self.settings.clip_norm:
            nn.utils.clip_grad_norm_(self.head.values(), self.settings.clip_norm)
        self._sgd.step()
        return loss.detach()

    def own_tensors(self) -> dict[str, Tensor]:
        """Return weight and bias of the own head."""
        return dict(self.head)

    def personalise(self, server_round: int, lr: float) -> None:
        """Add the client's own head to the head of the received model."""
        self.recall_own()
        own = self.slot.spare("own")
        copy_weights(self.model, own)
        with torch.no_grad():
            for name, tensor in self.head.items():
                own.get_parameter(f"head.{name}").add_(tensor)
        self.model = own
