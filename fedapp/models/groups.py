"""Model groups: which architecture and which head each client of a heterogeneous federation has.

The groups are those of the FedDOR paper's tables and of the lineage they come from (HtFLlib), and
two that fit a CPU. Both choices are functions of the client's id, so every process agrees on them
without asking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedapp.errors import UserError
from fedapp.models.backbones import check_batch_size

if TYPE_CHECKING:
    from fedapp.config import RunConfig
    from fedapp.method import Method

_LARGE = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_MHMG8 = ("fedavgcnn", "googlenet", "mobilenetv2", *_LARGE)
_HTC4 = (0, 512, 256, 128)


@dataclass(frozen=True)
class ModelGroup:
    """The architectures and the heads' hidden widths (0: none) that clients take in turn."""

    architectures: tuple[str, ...]
    hidden: tuple[int, ...] = (0,)
    feature_dim: int = 512  # K, where the configuration leaves it to us

    def architecture_of(self, client: int) -> str:
        """Return the architecture of a client, group[client mod n]."""
        return self.architectures[client % len(self.architectures)]

    def hidden_of(self, client: int) -> int:
        """Return the width of the hidden layer of a client's head; 0 when it has none."""
        return self.hidden[client % len(self.hidden)]

    @property
    def same_heads(self) -> bool:
        """Whether every client's head has the same shape, so that heads can be averaged."""
        return len(self.hidden) == 1

    @property
    def mentee(self) -> str:
        """The architecture that every client keeps beside its own in mutual distillation."""
        return self.architectures[0] if self.same_heads else "fedavgcnn"


GROUPS: dict[str, ModelGroup] = {
    "tiny": ModelGroup(("fedavgcnn", "resnet4"), feature_dim=64),
    "small": ModelGroup(("fedavgcnn", "resnet8", "mobilenetv2-quarter", "mixer"), feature_dim=128),
    "MHMG2": ModelGroup(("fedavgcnn", "resnet18")),
    "MHMG3": ModelGroup(("resnet10", "resnet18", "resnet34")),
    "MHMG4": ModelGroup(("fedavgcnn", "googlenet", "mobilenetv2", "resnet18")),
    "MHMG8": ModelGroup(_MHMG8),
    "MHMG9": ModelGroup(("resnet4", "resnet6", "resnet8", "resnet10", *_LARGE)),
    "Res34-HtC4": ModelGroup(("resnet34",), _HTC4),
    "MHMG8-HtC4": ModelGroup(_MHMG8, _HTC4),
}


def find_group(name: str) -> ModelGroup:
    """Return a model group by name; raises UserError that lists the names for an unknown one."""
    if name in GROUPS:
        return GROUPS[name]
    raise UserError(f"there is no model group '{name}'; choose one of {', '.join(GROUPS)}")


def group_settings(config: RunConfig, method: Method) -> dict[str, Any]:
    """Return what "auto" means where clients have architectures of their own: the FedDOR paper's.

    The groups `tiny`, for trying out, and `small`, four unlike networks that a CPU trains in an
    hour or two, have features of a length that fits them.
    """
    if method.personal is None:
        return {}
    group = "tiny" if config.model_group == "auto" else config.model_group
    return {
        "model_group": group,
        "feature_dim": GROUPS[group].feature_dim if group in GROUPS else 512,
        "local_epochs": 1,
        "batch_size": 32,
        "lr": 0.01,
        "lr_schedule": "constant",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "augmentation": "none",
    }


def check_group(config: RunConfig, method: Method) -> None:
    """Raise UserError where a method, its clients' models and the keys about them do not fit."""
    if config.eval_rule == "proto" and "rule" not in method.client_options:
        raise UserError(
            f"run-config key 'eval-rule' is 'proto', but the clients of method '{config.method}' "
            "receive no prototypes to compare images with; leave it at 'auto'"
        )
    if method.personal is None or not config.model_group:
        return
    group = find_group(config.model_group)
    _check_images(config, group)
    if method.personal.same_heads and not group.same_heads:
        fitting = ", ".join(name for name, each in GROUPS.items() if each.same_heads)
        raise UserError(
            f"method '{config.method}' averages the clients' heads, but the clients of model group "
            f"'{config.model_group}' have heads of different shapes; choose one of {fitting}"
        )
    if config.head_final_relu and group.same_heads:
        raise UserError(
            "run-config key 'head-final-relu' is for heads of different shapes, but those of model "
            f"group '{config.model_group}' are alike; leave it false"
        )
    check_batch_size("the networks of model groups have", config.batch_size)


def _check_images(config: RunConfig, group: ModelGroup) -> None:
    """Raise UserError if a client's network cannot take the data set's images, as far as known."""
    from fedapp.data.datasets import find_dataset
    from fedapp.models.architectures import check_architecture

    side = find_dataset(config.dataset).image_size
    if side is not None:
        for name in group.architectures[: config.num_clients]:
            check_architecture(name, side)
