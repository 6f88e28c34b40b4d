"""The papers' settings: what "auto" means for each data set, model and method.

Rows follow the papers' protocols: FedNTD's appendix B, FedFN's sections 2 and 5, FedDr+'s tables 7
to 10. A learning rate belongs to a data set, a model and a method, because a loss on cosines needs
a far larger rate than cross-entropy. A method without its own rate takes the setting's general one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedapp.config.run_config import RunConfig
from fedapp.data.datasets import DATASETS
from fedapp.data.partition.table import PARTITIONS
from fedapp.methods.row import USUAL_TEMPERATURES, Method
from fedapp.models.groups import GROUPS

Protocol = tuple[object, object]  # local epochs and augmentation

# Images per test batch in the two code bases; accuracy depends on it if BatchNorm uses batch
# statistics.
FEDNTD_TEST_BATCH, FEDBABU_TEST_BATCH = 50, 128


# Where a learning rate comes from.
PUBLISHED, TUNED, GUESS = "published", "tuned here", "not published"


@dataclass(frozen=True)
class Setting:
    """The protocol for one data set and model."""

    local_epochs: int
    lr: float  # of methods trained with cross-entropy on an ordinary head
    lr_of: dict[str, float] = field(default_factory=dict)  # by method
    lr_schedule: str = "step"
    augmentation: str = "none"
    batch_size: int = 50
    test_batch_size: int = FEDBABU_TEST_BATCH
    extras: dict[str, dict[str, float]] = field(default_factory=dict)  # by method, then key
    other_lr_of: dict[Protocol, dict[str, float]] = field(default_factory=dict)  # of other papers
    source: str = ""
    origin: str = PUBLISHED  # of `lr`
    own_origin: str = PUBLISHED  # of `lr_of`
    guessed: tuple[str, ...] = ()  # methods of `lr_of` whose rate is another data set's

    def rate(self, method: str, local_epochs: object, augmentation: object) -> float:
        """Return a method's learning rate, another paper's if epochs and augmentation are its own.

        With "auto" epochs or augmentation the setting's own protocol applies.
        """
        others = self.other_lr_of.get((local_epochs, augmentation), {})
        return others.get(method, self.lr_of.get(method, self.lr))

    def rate_origin(self, method: str, ordinary: bool) -> str:
        """Return where a method's learning rate comes from: PUBLISHED, TUNED or GUESS.

        `ordinary`: the method trains with cross-entropy on a plain head, as `lr` assumes.
        """
        if method in self.guessed:
            return GUESS
        if method in self.lr_of:
            return self.own_origin
        return self.origin if ordinary else GUESS


MODEL_OF = {
    "digits": "cnn",
    "mnist": "cnn",
    "fashion-mnist": "cnn",
    "cifar10": "vgg11",
    "cifar100": "mobilenet",
    "cinic10": "cnn",
    "imagenet100": "resnet18",
    "tiny-imagenet": "resnet18",
    "flowers102": "resnet18",
    "images": "cnn",
}


def _rates(fn: float, **rates: float) -> dict[str, float]:
    """Return learning rates by method; `fn` is the rate of FedFN's module on every base method."""
    bases = ("fedfn", "fedexp+fn", "scaffold+fn", "centralised+fn")
    return {**dict.fromkeys(bases, fn), **rates}


_VGG_RATES = _rates(  # FedDr+ table 8 (CIFAR-10); FN: FedFN section 5.1
    0.03, **{"dr": 0.35, "feddr+": 0.35, "spherefed": 0.55, "fedetf": 0.05}
)
_CNN_RATES = _rates(  # DR: best of 0.01, 0.1, 0.35 on CIFAR-10, measured here; no paper has one
    0.03, **{"dr": 0.01, "feddr+": 0.01}
)
_MOBILENET_RATES = _rates(  # FedDr+ table 9; FN, spherefed-ce: FedFN section 5.1, appendix D.3
    0.5, **{"dr": 5.0, "feddr+": 5.0, "spherefed": 6.5, "spherefed-ce": 0.3, "fedetf": 0.5}
)
_RESNET_RATES = _rates(  # FedDr+ table 10 (ImageNet-100); FN: ours, as on CIFAR-100
    0.5, **{"dr": 1.0, "feddr+": 1.0, "spherefed": 1.0, "fedetf": 1.0}
)
_DIGITS_RATES = _rates(
    0.1,
    **{"dr": 0.3, "feddr+": 0.3, "spherefed": 0.5, "spherefed-ce": 0.1, "fedetf": 0.1},
    # 0.05 diverges with a momentum that lasts across rounds
    **{"centralised": 0.01, "centralised+babu": 0.01},
)

_FEDNTD_SOURCE = "FedNTD appendix B.3, tables 4, 5; DR and FN rates are ours, see docs/methods.md"
_FEDNTD_CNN = Setting(
    5, 0.01, _CNN_RATES, "exponential", "crop flip cutout",
    extras={"fedprox": {"mu": 0.1}, "fedntd": {"beta": 1.0, "tau": 1.0}},
    test_batch_size=FEDNTD_TEST_BATCH,
    source=_FEDNTD_SOURCE,
    own_origin=TUNED,
)  # fmt: skip
_BORROWED: dict[str, Any] = {"origin": GUESS, "own_origin": GUESS}  # rates of another data set
_FEDDR_EXTRAS = {  # FedDr+ tables 8-10
    "fedprox": {"mu": 0.001},
    "fedntd": {"beta": 1.0, "tau": 3.0},
}

# All methods of a row share local epochs and augmentation, so that methods can be compared. FedFN
# trains VGG11 for 15 epochs and MobileNet for 5, with flips only: its presets set this.
SETTINGS: dict[tuple[str, str], Setting] = {
    ("digits", "cnn"): Setting(
        1, 0.05, _DIGITS_RATES, "step", "none", 10, source="chosen here, see docs/methods.md",
        origin=TUNED, own_origin=TUNED,
    ),
    ("mnist", "cnn"): replace(_FEDNTD_CNN, local_epochs=3, own_origin=GUESS),
    ("fashion-mnist", "cnn"): replace(
        _FEDNTD_CNN, local_epochs=3, source="as MNIST in FedNTD", **_BORROWED
    ),
    ("cifar10", "cnn"): _FEDNTD_CNN,
    ("cifar100", "cnn"): replace(_FEDNTD_CNN, own_origin=GUESS),
    ("cinic10", "cnn"): replace(
        _FEDNTD_CNN, augmentation="crop-reflect flip", own_origin=GUESS
    ),
    ("cifar10", "resnet10"): replace(
        _FEDNTD_CNN, source="FedNTD appendix G.3; DR and FN rates are ours", own_origin=GUESS
    ),
    ("images", "cnn"): replace(_FEDNTD_CNN, source="as CIFAR-10 in FedNTD", **_BORROWED),
    ("cifar10", "vgg11"): Setting(
        10, 0.01, _VGG_RATES, "step", "crop flip", extras=_FEDDR_EXTRAS,
        source="FedDr+ tables 7 and 8; FedFN section 5.1 for fedfn",
    ),
    ("cifar10", "resnet18"): Setting(
        15, 0.01, _rates(0.1), "step", "flip", source="FedFN section 5.2"
    ),
    ("cifar100", "mobilenet"): Setting(
        3, 0.1, _MOBILENET_RATES, "step", "crop flip", extras=_FEDDR_EXTRAS,
        test_batch_size=FEDNTD_TEST_BATCH,  # FedDr+ made its table 3 with FedNTD's code
        other_lr_of={(5, "flip"): {"spherefed": 4.5}},  # FedFN appendices C.2 and D.3
        source="FedDr+ tables 7 and 9; FedFN section 5.1 for fedfn",
    ),
    ("imagenet100", "resnet18"): Setting(
        5, 0.1, _RESNET_RATES, "step", "rrc flip", extras=_FEDDR_EXTRAS,
        test_batch_size=FEDNTD_TEST_BATCH,  # as for CIFAR-100
        source="FedDr+ tables 7 and 10; FN rates are ours", guessed=tuple(_rates(0.0)),
    ),
    ("tiny-imagenet", "resnet18"): Setting(
        5, 0.1, _RESNET_RATES, "step", "crop flip",
        source="as ImageNet-100: no paper trains one model for all on it", **_BORROWED,
    ),
    ("flowers102", "resnet18"): Setting(
        5, 0.1, _RESNET_RATES, "step", "rrc flip", 10,
        source="as ImageNet-100, in smaller batches: no paper trains one model for all on it",
        **_BORROWED,
    ),
}  # fmt: skip

_GENERAL = Setting(
    5, 0.01, _VGG_RATES, "step", "crop flip",
    source="no published setting for this pair: VGG11's rates", **_BORROWED,
)  # fmt: skip

_PHOTOS = replace(
    SETTINGS["imagenet100", "resnet18"],
    test_batch_size=FEDBABU_TEST_BATCH,
    source="no published setting for this pair: ResNet-18's",
    **_BORROWED,
)


def settings_name(dataset: str) -> str:
    """Return the name of a data set in the settings; a hub data set has its name's last part.

    hub:uoft-cs/cifar10 is cifar10, and hub:zalando-datasets/fashion_mnist is fashion-mnist.
    """
    return dataset.partition("/")[2].partition(":")[0].replace("_", "-") or dataset


def _streams(name: str) -> bool:
    return name in DATASETS and DATASETS[name].streams


def default_model(dataset: str, fitting: Sequence[str] = ()) -> str:
    """Return the papers' backbone for a data set, or the first fitting one if it does not fit.

    `fitting` lists the backbones that a method can train; empty: all.
    """
    name = settings_name(dataset)
    usual = MODEL_OF.get(name, "resnet18" if _streams(name) else "cnn")
    return usual if usual in fitting or not fitting else fitting[0]


def find_setting(dataset: str, model: str) -> Setting:
    """Return the published setting for a data set and model, or the general setting.

    Photos of many sizes, which are decoded when they are used, have a general setting of their own,
    because they cannot be cropped with padding.
    """
    general = _PHOTOS if _streams(dataset) else _GENERAL
    return SETTINGS.get((dataset, model.removesuffix("-imagenet-stem")), general)


# The weights that FedDr+ tuned for every base loss with every regulariser (its table 12).
# beta * base + (1 - beta) * regulariser needs a different beta for each pair, because the sizes of
# the terms differ widely. The tuning used CIFAR-100, MobileNet, 10 shards or LDA 0.1. Table 13 of
# the paper takes 0.9 everywhere.
_TUNED_ON = ("cifar100", "mobilenet")
ORDER = ("prox", "moon", "kd", "ntd", "ld", "fd")

BETAS: dict[str, dict[str, tuple[float, ...]]] = {
    "shards": {
        "fedavg": (0.999, 0.5, 0.9999, 0.9999, 0.999, 0.9),
        "fedbabu": (0.9999, 0.9, 0.999, 0.99, 0.999, 0.999),
        "spherefed": (0.9999, 0.9999, 0.9999, 0.9, 0.99, 0.9),
        "fedetf": (0.999, 0.3, 0.5, 0.999, 0.9, 0.9),
        "fedgela": (0.9999, 0.7, 0.5, 0.7, 0.5, 0.7),
        "dr": (0.9999, 0.9, 0.5, 0.5, 0.5, 0.9),
    },
    "lda": {
        "fedavg": (0.999, 0.99, 0.999, 0.99, 0.999, 0.9999),
        "fedbabu": (0.999, 0.999, 0.999, 0.999, 0.99, 0.9999),
        "spherefed": (0.9999, 0.999, 0.999, 0.9999, 0.999, 0.99),
        "fedetf": (0.9999, 0.9999, 0.5, 0.999, 0.99, 0.99),
        "fedgela": (0.99, 0.9, 0.5, 0.5, 0.5, 0.3),
        "dr": (0.9999, 0.5, 0.5, 0.5, 0.5, 0.9),
    },
}


def blend_settings(
    base: str, regulariser: str, data_and_model: tuple[str, str], partition: str
) -> dict[str, float]:
    """Return the tuned "beta" and the "tau" of a regulariser that the user adds to a base method.

    A value that the paper did not tune is missing; the caller's default applies.
    """
    settings = {"tau": USUAL_TEMPERATURES[regulariser]} if regulariser in USUAL_TEMPERATURES else {}
    betas = BETAS.get(partition, {}).get(base)
    if data_and_model == _TUNED_ON and betas is not None and regulariser in ORDER:
        settings["beta"] = betas[ORDER.index(regulariser)]
    return settings


CLASSES_PER_CLIENT = {"cifar100": 10, "flowers102": 10, "tiny-imagenet": 20}  # FedDOR; others: 2
PARTITION_SEED = 1  # of pooled data: runs with different seeds share one partition


def pools_data(partition: str) -> bool:
    """Return whether a partition pools training and test images before it divides them."""
    return partition in PARTITIONS and PARTITIONS[partition].pools


def partition_settings(config: RunConfig) -> dict[str, Any]:
    """Return what "auto" means for the keys of the partition."""
    pools = config.pool_data
    if pools == "auto":
        pools = pools_data(config.partition)
    return {
        "normalisation": "symmetric" if pools else "dataset",
        "classes_per_client": CLASSES_PER_CLIENT.get(settings_name(config.dataset), 2),
        "pool_data": pools,
        "partition_seed": PARTITION_SEED if pools else config.seed,
    }


def group_settings(config: RunConfig, method: Method) -> dict[str, Any]:
    """Return what "auto" means if clients have different architectures: the FedDOR paper's values.

    The groups `tiny` (for a first try) and `small` (four different networks that a CPU trains in an
    hour or two) have their own feature sizes.
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
