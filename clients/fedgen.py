"""FedGen's client: its head also learns from features that the server's generator makes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.arrays import Arrays
from clients.personal_model import PersonalClient
from clients.training.arrays import load_arrays
from clients.training.local_training import Forward
from clients.training.objective import Objective
from clients.update import Update

# The same names as in strategies.fedgen; neither package imports the other.
EXTRA, COUNTS, LABELS = "generator", "label-counts", "label-distribution"
MISSING_COUNTS = "missing-label-counts"


class FedGenClient(PersonalClient):
    """CE(h(f), y) + alpha CE(h(Gen(ε, ỹ)), ỹ), starting from the received head; the head is sent.

    The generator is frozen on the client. The first `warmup` rounds skip it, because it is not
    trained yet. A client uploads its label counts if the server lacks them. Source: Zhu et al.,
    ICML 2021.
    """

    def __init__(
        self,
        *args: Any,
        generator: Callable[[], nn.Module],
        noise: int,
        warmup: int,
        alpha: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.build_generator, self.noise, self.warmup = generator, noise, warmup
        self.alpha = alpha
        self.generator: nn.Module | None = None
        self.labels = torch.empty(0)

    def prepare(self, server_round: int) -> None:
        """Load the personal model and the received head and generator."""
        super().prepare(server_round)
        if server_round <= self.warmup:
            return
        received = dict(self.extras[EXTRA])
        self.labels = torch.from_numpy(received.pop(LABELS))
        self.generator = self.build_generator().eval().requires_grad_(False)
        load_arrays(self.generator.state_dict(), received)
        self.generator.to(self.slot.device)

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch; the noise comes from the seeded RNG of `work`."""
        step = forward()
        loss = objective(step)
        if self.generator is not None:
            size, device = len(step.labels), self.slot.device
            labels = torch.multinomial(self.labels, size, replacement=True).to(
                device, non_blocking=True
            )
            noise = torch.rand(size, self.noise).to(device, non_blocking=True)
            features = self.generator(noise, labels)
            logits = self.model.get_submodule("head")(features).float()
            loss = loss + self.alpha * F.cross_entropy(logits, labels)
        loss.backward()
        return loss.detach()

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Store the model; upload label counts if the server lacks them."""
        if self.client in self.extras.get(EXTRA, {}).get(MISSING_COUNTS, ()):
            update.uploads = {COUNTS: self.data.all_counts.cpu().numpy().copy()}
        super().finish(received, update, lr)
