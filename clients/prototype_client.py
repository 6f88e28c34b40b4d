"""Clients that send a prototype (mean feature) per class and are pulled to the global prototypes.

The methods differ in the pull, in what is averaged, and in the prediction: the class of the largest
logit or of the nearest prototype. Each method is one small class in a file of its own.
"""

from typing import Any

import torch
from torch import Tensor

from clients.arrays import Arrays
from clients.personal_model import PersonalClient
from clients.prototype_losses import class_means, cosine_alignment, nearest_prototype
from clients.training.arrays import to_arrays
from clients.training.evaluation import Score, joined, predict
from clients.training.local_training import Forward, in_bfloat16
from clients.training.objective import Objective, Step
from clients.update import Update

# The same names as in strategies.prototypes.uploads; neither package imports the other.
PROTOTYPES, CLASSES, COUNTS = "proto", "proto-classes", "proto-counts"
EXTRA = "prototypes"


class PrototypeClient(PersonalClient):
    """The objective plus `weight` times the pull to the received prototype of each image's class.

    Without a received prototype there is no pull. After the last epoch the client uploads the mean
    of f over all training images of each class (FedProto, equation 3), in evaluation mode. With
    `collect` "during" it uploads the mean of the features that training computed while the model
    was changing.
    """

    by_prototype = False  # whether the prediction is the class of the nearest prototype
    cosine = True  # nearest by cosine, or by Euclidean distance
    counted = False  # whether the number of images of each class is uploaded too
    kind = "raw-mean"  # as in `class_means`
    ce_weight = 1.0  # of the objective

    def __init__(
        self,
        *args: Any,
        weight: float = 0.0,
        rule: str = "auto",
        collect: str = "after",
        **kwargs: Any,
    ) -> None:
        """Prepare a client; `rule` is "head", "proto" or "auto" (the method's default)."""
        super().__init__(*args, **kwargs)
        self.weight, self.during = weight, collect == "during"
        self.recordable = not self.during
        self.seen: list[tuple[Tensor, Tensor]] = []  # what is averaged [B, width], labels [B]
        self.by_prototype = self.by_prototype if rule == "auto" else rule == "proto"
        self.num_classes = len(self.data.class_counts)
        self.prototypes, self.known = self._received()

    def pull(self, step: Step) -> Tensor:
        """Return the distance of a batch's features to the prototypes of its classes."""
        return cosine_alignment(step.features, step.labels, self.prototypes, self.known)

    def local_loss(self, step: Step, objective: Objective) -> Tensor:
        """Return the loss of one batch."""
        loss = self.ce_weight * objective(step)
        return loss + self.weight * self.pull(step) if len(self.prototypes) else loss

    def represent(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return what is averaged over each class, [B, width]."""
        return features

    def gradients(self, forward: Forward, objective: Objective) -> Tensor:
        """Set the gradients of one batch."""
        step = forward()
        if self.during:
            seen = self.represent(step.features, step.logits).detach()
            self.seen.append((seen, step.labels))
        loss = self.local_loss(step, objective)
        loss.backward()
        return loss.detach()

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Store the model and upload the means of the classes that are present."""
        super().finish(received, update, lr)
        update.uploads = self.collect()

    @torch.no_grad()
    def collect(self) -> Arrays:
        """Return the means of the present classes, their ids and, with `counted`, their counts."""
        seen = self.seen or self._of_all_examples()  # empty for a client with a single image
        rows, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
        means, counts = class_means(rows, labels, self.num_classes, self.kind)
        present = counts.nonzero().squeeze(1)
        tensors = {PROTOTYPES: means[present].float(), CLASSES: present}
        if self.counted:
            tensors[COUNTS] = counts[present]
        return to_arrays(tensors)

    def _of_all_examples(self) -> list[tuple[Tensor, Tensor]]:
        """Return the representations of all training images by the current model.

        They have the precision of training.
        """
        examples = self.data.examples(self.server_round)
        with in_bfloat16(self.slot.device.type, self.settings.precision == "bf16"):
            return [
                (self.represent(features, logits), labels)
                for features, logits, labels in predict(self.model, examples)
            ]

    @torch.no_grad()
    def scores(self) -> dict[str, float]:
        """Return the loss and both accuracies; "accuracy" is that of the method's rule."""
        score, any_known = Score(), bool(self.known.any())
        hits: list[Tensor] = []  # of the nearest prototype
        for features, logits, labels in predict(self.model, self.data.test()):
            score.add(logits, labels)
            if any_known:
                compared = self.represent(features, logits)
                nearest = nearest_prototype(compared, self.prototypes, self.known, self.cosine)
                hits.append(nearest == labels)
        accuracy_proto = int(joined(hits).sum()) / max(score.count, 1)
        scores = {
            "loss": score.loss,
            "accuracy": accuracy_proto if self.by_prototype else score.accuracy,
            "accuracy_head": score.accuracy,
            "examples": score.count,
        }
        return {**scores, "accuracy_proto": accuracy_proto} if any_known else scores

    def _received(self) -> tuple[Tensor, Tensor]:
        """Return the received prototypes [C, width], [0] if none, and which are known, [C]."""
        known = torch.zeros(self.num_classes, dtype=torch.bool, device=self.slot.device)
        table = self.extras.get(EXTRA)
        if table is None:
            return torch.zeros(0, device=self.slot.device), known
        rows = torch.from_numpy(table[PROTOTYPES]).to(self.slot.device)
        classes = torch.from_numpy(table[CLASSES]).to(self.slot.device)
        prototypes = rows.new_zeros(self.num_classes, rows.shape[1])
        prototypes[classes], known[classes] = rows, True
        return prototypes, known
