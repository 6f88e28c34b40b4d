"""Model groups: the architecture and the head of each client of a heterogeneous federation.

The groups are those of the FedDOR paper's tables and of HtFLlib, from which they come, and two
groups for CPUs. Both depend only on the client's id, so that every process knows them without
communication.
"""

from dataclasses import dataclass

from fedapp.core.errors import unknown

_LARGE = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
_MHMG8 = ("fedavgcnn", "googlenet", "mobilenetv2", *_LARGE)
_HTC4 = (0, 512, 256, 128)


@dataclass(frozen=True)
class ModelGroup:
    """The architectures and the heads' hidden widths (0: none), assigned to clients in turn."""

    architectures: tuple[str, ...]
    hidden: tuple[int, ...] = (0,)
    feature_dim: int = 512  # K, if the configuration does not set it

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


MODEL_GROUPS: dict[str, ModelGroup] = {
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
    """Return a model group by name; raises UserError for an unknown one."""
    if name in MODEL_GROUPS:
        return MODEL_GROUPS[name]
    raise unknown("model group", name, MODEL_GROUPS)
