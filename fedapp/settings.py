"""The papers' settings: what "auto" means for each data set, model and method.

Rows follow section 5.2 of the published protocols (FedNTD, FedFN and FedDr+ appendices). A learning
rate belongs to a data set, a model and a method, because a loss on cosines needs a far larger one
than cross-entropy; a method without a number of its own takes the row's general one.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setting:
    """The protocol for one data set and model."""

    local_epochs: int
    lr: float  # methods trained with cross-entropy on an ordinary head
    lr_of: dict[str, float] = field(default_factory=dict)  # by method
    lr_schedule: str = "step"
    augmentation: str = "none"
    batch_size: int = 50
    source: str = ""


MODEL_OF = {
    "digits": "cnn",
    "mnist": "cnn",
    "fashion-mnist": "cnn",
    "cifar10": "vgg11",
    "cifar100": "mobilenet",
    "images": "cnn",
}

_FEDNTD_CNN = Setting(
    5, 0.01, {"dr": 0.35, "feddr+": 0.35, "fedfn": 0.03}, "exponential", "crop flip cutout",
    source="FedNTD appendix B; DR and FN rates as published for VGG11",
)  # fmt: skip

SETTINGS: dict[tuple[str, str], Setting] = {
    ("digits", "cnn"): Setting(
        1, 0.05, {"dr": 0.3, "feddr+": 0.3, "fedfn": 0.1}, "step", "none", 10,
        source="chosen here, see docs/methods.md",
    ),
    ("mnist", "cnn"): Setting(
        3, 0.01, {"dr": 0.35, "feddr+": 0.35, "fedfn": 0.03}, "exponential", "crop flip cutout",
        source="FedNTD appendix B; DR and FN rates as published for VGG11",
    ),
    ("fashion-mnist", "cnn"): Setting(
        3, 0.01, {"dr": 0.35, "feddr+": 0.35, "fedfn": 0.03}, "exponential", "crop flip cutout",
        source="as MNIST in FedNTD",
    ),
    ("cifar10", "cnn"): _FEDNTD_CNN,
    ("images", "cnn"): _FEDNTD_CNN,
    ("cifar10", "vgg11"): Setting(
        10, 0.01, {"dr": 0.35, "feddr+": 0.35, "fedfn": 0.03}, "step", "crop flip",
        source="FedDr+ tables 7-8; FedFN appendix for fedfn",
    ),
    ("cifar100", "mobilenet"): Setting(
        3, 0.1, {"dr": 5.0, "feddr+": 5.0, "fedfn": 0.5}, "step", "crop flip",
        source="FedDr+ tables 7-8; FedFN appendix for fedfn",
    ),
}  # fmt: skip

_GENERAL = Setting(
    5, 0.01, {"dr": 0.35, "feddr+": 0.35, "fedfn": 0.03}, "step", "crop flip",
    source="no published setting for this pair: VGG11's rates",
)  # fmt: skip


def find_setting(dataset: str, model: str) -> Setting:
    """Return the published setting for a data set and model, or the general one."""
    return SETTINGS.get((dataset, model), _GENERAL)
