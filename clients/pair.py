"""Two models on one client that teach each other: its own, and a small one that is shared.

The pair is trained as one module, so that one backward pass and one optimiser serve both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clients.arrays import load_arrays, to_arrays
from clients.client import Arrays
from clients.local_training import Forward, TrainingResult
from clients.objective import Objective
from clients.personal_model import PersonalClient
from clients.prototype_losses import adaptive_mutual, mutual

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


class FMLClient(PairClient):
    """Mutual learning with a meme model that is averaged (Shen et al. 2020, arXiv 2006.16765)."""

    def __init__(self, *args: Any, alpha: float = 0.5, beta: float = 0.5, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alpha, self.beta = alpha, beta

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses of `mutual`."""
        pair: Any = self.model
        return mutual(logits, pair.seen[1], labels, self.alpha, self.beta)


class FedKDClient(PairClient):
    """Adaptive mutual distillation; the mentee travels compressed (Wu et al., Nat. Commun. 2022).

    `compress` and `decompress` are handed in: both sides must use the same.
    """

    def __init__(
        self,
        *args: Any,
        compress: Callable[[Arrays, int], Arrays],
        decompress: Callable[[Arrays, Arrays], Arrays],
        kl: str = "mean",
        detach: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.compress, self.decompress = compress, decompress
        self.per_element, self.detach = kl == "mean", detach
        self.server_round = 0

    def recall(self, keep_received: bool) -> None:
        """Load both models, and put the received mentee in the place of the own one."""
        super().recall(keep_received)
        if keep_received and INBOX in self.inbox:  # an evaluation comes without: it has no part
            mentee = self._mentee()
            received = self.decompress(self.inbox[INBOX], to_arrays(mentee))
            load_arrays(mentee, received)

    def prepare(self, server_round: int) -> None:
        """Take both models; the round decides how much of the mentee will be sent."""
        super().prepare(server_round)
        self.server_round = server_round

    def losses(self, features: Tensor, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return both losses of `adaptive_mutual`."""
        pair: Any = self.model
        mentee_features, mentee_logits = pair.seen
        return adaptive_mutual(
            (logits, mentee_logits), (features, pair.transform(mentee_features)), labels,
            self.per_element, self.detach,
        )  # fmt: skip

    def finish(
        self, received: Arrays, trained: Arrays, result: TrainingResult, lr: float
    ) -> Arrays:
        """Store both models and upload the mentee, compressed."""
        sent = super().finish(received, trained, result, lr)
        self.uploads = self.compress(to_arrays(self._mentee()), self.server_round)
        return sent

    def _mentee(self) -> dict[str, Tensor]:
        """Return the mentee's parameters; its BatchNorm statistics stay with the client."""
        return dict(self.model.get_submodule("mentee").named_parameters())
