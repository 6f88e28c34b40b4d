"""The local objective of one batch: a base loss and a regulariser towards the global model.

Both are looked up by name. Any base loss works with any regulariser, and a row of the method table
names one of each. `Step` has everything that a loss needs of a batch; the formulas are in
`clients.losses`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clients import losses

_ABSENT = torch.empty(0)


class NotScalarError(ValueError):
    """A loss returns something else than one number; the message names the loss."""


@dataclass(frozen=True)
class LossOptions:
    """Variants of single losses, where papers and their code differ; see `clients.losses`."""

    share: float = 1.0  # of NTD in "kd-ntd"
    tau_squared: bool = True  # whether "ntd" is multiplied by tau^2
    decorr_authors: bool = True  # whether "decorr" has the scale of its authors' code
    arguments: tuple[tuple[str, str, Any], ...] = ()  # base loss, its argument, the value


@dataclass(frozen=True)
class Step:
    """One batch with the outputs of the local and, if a regulariser needs it, the global model."""

    labels: Tensor  # [B] int64
    features: Tensor  # [B, d]
    logits: Tensor  # [B, C], from which the model predicts
    classifier: Tensor  # the head's weight [C, d]
    parameters: Sequence[Tensor] = ()  # trainable, local
    global_parameters: Sequence[Tensor] = ()  # the same parameters as received this round
    global_features: Tensor = _ABSENT  # set if the objective `needs_global_outputs`
    global_logits: Tensor = _ABSENT
    previous_features: Tensor = _ABSENT  # set if the objective `needs_previous`
    class_counts: Tensor = _ABSENT  # [C], this client's training examples of each class
    tau: float = 1.0
    options: LossOptions = LossOptions()
    images: Tensor = _ABSENT  # [B, channels, H, W], normalised and augmented


LossFunction = Callable[..., Tensor]  # of a Step, and of the arguments that a row names

BASE_LOSSES: dict[str, LossFunction] = {
    "ce": lambda step: losses.cross_entropy(step.logits, step.labels),
    "cosine-mse": lambda step, reduction="mean": losses.cosine_mse(
        step.logits, step.labels, reduction
    ),
    "balanced-ce": lambda step, missing="clamp": losses.balanced_cross_entropy(
        step.logits, step.labels, step.class_counts, missing=missing
    ),
    "balanced-softmax": lambda step: losses.balanced_cross_entropy(
        step.logits, step.labels, step.class_counts, missing="exclude"
    ),
    "scaled-ce": lambda step, temperature=1.0: losses.scaled_cross_entropy(
        step.logits, step.labels, losses.class_scale(step.class_counts), temperature
    ),
    "calibrated-ce": lambda step, margin=1.0: losses.calibrated_cross_entropy(
        step.logits, step.labels, step.class_counts, margin
    ),
    # `absent` is the factor of the logits of classes that the client lacks
    "restricted-ce": lambda step, absent=0.5: losses.scaled_cross_entropy(
        step.logits, step.labels, losses.restricted_scale(step.class_counts, absent)
    ),
    "dr": lambda step: losses.dot_regression(step.features, step.labels, step.classifier),
}


@dataclass(frozen=True)
class Regulariser:
    """A regulariser's loss function and the inputs that it needs."""

    function: LossFunction
    needs_global_outputs: bool = True  # a forward pass of the received model on the same batch
    needs_global_weights: bool = True  # a copy of the received model
    needs_previous: bool = False  # features of this client's own last model


REGULARISERS: dict[str, Regulariser] = {
    "norm": Regulariser(  # mean feature norm
        lambda step: losses.feature_norm(step.features),
        needs_global_outputs=False,
        needs_global_weights=False,
    ),
    "decorr": Regulariser(  # mean squared correlation of features
        lambda step: losses.feature_decorrelation(step.features, step.options.decorr_authors),
        needs_global_outputs=False,
        needs_global_weights=False,
    ),
    "prox": Regulariser(  # proximal term, 1/2 ||w - w_g||^2
        lambda step: losses.proximal(step.parameters, step.global_parameters),
        needs_global_outputs=False,
    ),
    "kd": Regulariser(  # distillation of all logits, tau^2 KL
        lambda step: losses.knowledge_distillation(step.logits, step.global_logits, step.tau),
    ),
    "ntd": Regulariser(  # distillation of the not-true logits, tau^2 KL or KL
        lambda step: losses.not_true_distillation(
            step.logits, step.global_logits, step.labels, step.tau, step.options.tau_squared
        ),
    ),
    "ntd-mse": Regulariser(  # mean squared difference of the not-true logits
        lambda step: losses.not_true_mse(step.logits, step.global_logits, step.labels),
    ),
    "kd-ntd": Regulariser(  # (1 - lambda) of kd and lambda of ntd
        lambda step: losses.kd_to_ntd(
            step.logits, step.global_logits, step.labels, step.tau, step.options.share
        ),
    ),
    "ld": Regulariser(  # mean squared difference of logits
        lambda step: losses.logit_distillation(step.logits, step.global_logits),
    ),
    "moon": Regulariser(  # contrast between the features of the received and of the own last model
        lambda step: losses.moon_contrastive(
            step.features, step.global_features, step.previous_features, step.tau
        ),
        needs_previous=True,
    ),
    "fd": Regulariser(  # mean squared difference of features
        lambda step: losses.feature_distillation(step.features, step.global_features),
    ),
}


@dataclass(frozen=True)
class Objective:
    """`base_weight * base + reg_weight * regulariser`, as the method's own paper combines them."""

    base: str = "ce"
    regulariser: str | None = None
    base_weight: float = 1.0
    reg_weight: float = 0.0
    tau: float = 1.0
    options: LossOptions = LossOptions()
    # of the client, for losses that use them; from Python 3.13 on, == would compare all its values
    class_counts: Tensor = field(default=_ABSENT, compare=False)

    @property
    def needs_global_outputs(self) -> bool:
        """Whether every batch also needs a forward pass of the received model."""
        return self.regulariser is not None and REGULARISERS[self.regulariser].needs_global_outputs

    @property
    def needs_previous(self) -> bool:
        """Whether every batch also needs a forward pass of the client's own last model."""
        return self.regulariser is not None and REGULARISERS[self.regulariser].needs_previous

    @property
    def needs_global_weights(self) -> bool:
        """Whether a copy of the received model must be kept while training."""
        return self.regulariser is not None and REGULARISERS[self.regulariser].needs_global_weights

    def __call__(self, step: Step) -> Tensor:
        """Return the scalar loss of one batch; raises `NotScalarError` if it is anything else."""
        loss = _checked(self.base, self.base_loss(step))
        if self.base_weight != 1.0:
            loss = self.base_weight * loss
        if self.regulariser is not None:
            loss = loss + self.reg_weight * _checked(self.regulariser, self.regularisation(step))
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise NotScalarError(
                f"the loss '{self.base}' does not depend on the model: compute it from step.logits "
                "or step.features, without .item() and .detach()"
            )
        return loss

    def base_loss(self, step: Step) -> Tensor:
        """Return the base loss alone, without its weight."""
        own = {name: value for loss, name, value in self.options.arguments if loss == self.base}
        return BASE_LOSSES[self.base](step, **own)

    def regularisation(self, step: Step) -> Tensor:
        """Return the regulariser alone, without its weight; ValueError if there is none."""
        if self.regulariser is None:
            raise ValueError("this objective has no regulariser")
        return REGULARISERS[self.regulariser].function(step)


def _checked(name: str, loss: object) -> Tensor:
    """Return a loss or a regulariser; raises `NotScalarError` unless it is one number, a tensor."""
    if not isinstance(loss, Tensor):
        raise NotScalarError(
            f"the loss '{name}' returns {loss!r} but must return one number as a tensor, such as "
            "the mean over the batch"
        )
    if loss.dim() or not loss.is_floating_point():
        raise NotScalarError(
            f"the loss '{name}' has the shape {list(loss.shape)} but must be one number, such as "
            f"the mean over the batch, of a floating type (it is {loss.dtype})"
        )
    return loss
