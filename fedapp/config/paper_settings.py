"""The papers' settings, as data: learning rates, protocols, models and tuned weights.

Rows follow the papers' protocols: FedNTD's appendix B, FedFN's sections 2 and 5, FedDr+'s tables 7
to 10, and FedDOR's for methods with a model per client. A learning rate belongs to a data set, a
model and a method, because a loss on cosines needs a far larger rate than cross-entropy.
`fedapp.config.auto` chooses among the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Protocol = tuple[object, object]  # local epochs and augmentation

# Images per test batch in the two code bases; accuracy depends on it if BatchNorm uses batch
# statistics.
FEDNTD_TEST_BATCH, FEDBABU_TEST_BATCH = 50, 128

# Where a learning rate comes from.
PUBLISHED, TUNED, GUESS = "published", "tuned here", "not published"

# Methods that the papers of these settings do not compare with: their rates are FedAvg's.
NOT_COMPARED = frozenset((
    "fedadagrad", "fedyogi", "fedadam", "fedsam", "feddecorr", "fedbn", "apfl", "pfedme",
    "fedala", "ifca",
))  # fmt: skip


@dataclass(frozen=True)
class Rate:
    """A learning rate and where it comes from: PUBLISHED, TUNED or GUESS."""

    value: float
    origin: str = PUBLISHED


@dataclass(frozen=True)
class Setting:
    """The protocol for one data set and model."""

    local_epochs: int
    lr: Rate  # of methods trained with cross-entropy on an ordinary head
    rates: dict[str, Rate] = field(default_factory=dict)  # by method, of methods with their own
    lr_schedule: str = "step"
    augmentation: str = "none"
    batch_size: int = 50
    test_batch_size: int = FEDBABU_TEST_BATCH
    extras: dict[str, dict[str, float]] = field(default_factory=dict)  # by method, then key
    other_rates: dict[Protocol, dict[str, Rate]] = field(default_factory=dict)  # of other papers
    source: str = ""

    def rate(
        self, method: str, ordinary: bool, epochs: object = "auto", augmentation: object = "auto"
    ) -> Rate:
        """Return a method's learning rate, another paper's if epochs and augmentation are its own.

        With "auto" epochs or augmentation the setting's own protocol applies. `ordinary`: the
        method trains with cross-entropy on a plain head, as `lr` assumes.
        """
        stated = ordinary and method not in NOT_COMPARED
        usual = self.lr if stated else Rate(self.lr.value, GUESS)
        return {**self.rates, **self.other_rates.get((epochs, augmentation), {})}.get(method, usual)


MODEL_OF = {
    "digits": "cnn", "mnist": "cnn", "fashion-mnist": "cnn", "cinic10": "cnn", "images": "cnn",
    "cifar10": "vgg11", "cifar100": "mobilenet",
    "imagenet100": "resnet18", "tiny-imagenet": "resnet18", "flowers102": "resnet18",
}  # fmt: skip


def _rates(origin: str, values: Mapping[str, float]) -> dict[str, Rate]:
    return {method: Rate(value, origin) for method, value in values.items()}


def _fn(rate: float) -> dict[str, float]:
    """Return the learning rate of FedFN's module on every base method."""
    return dict.fromkeys(("fedfn", "fedexp+fn", "scaffold+fn", "centralised+fn"), rate)


def _guessed(setting: Setting, **changes: Any) -> Setting:
    """Return a setting for other data or another model, whose rates are thus guesses."""
    rates = {method: Rate(rate.value, GUESS) for method, rate in setting.rates.items()}
    return replace(setting, lr=Rate(setting.lr.value, GUESS), rates=rates, **changes)


_VGG_RATES = {  # FedDr+ table 8 (CIFAR-10); FN: FedFN section 5.1
    **_fn(0.03), "dr": 0.35, "feddr+": 0.35, "spherefed": 0.55, "fedetf": 0.05,
    "fedgela": 0.01,
}  # fmt: skip
# DR: best of 0.01, 0.1, 0.35 on CIFAR-10, measured here; no paper has one
_CNN_RATES = {**_fn(0.03), "dr": 0.01, "feddr+": 0.01}
_MOBILENET_RATES = {  # FedDr+ table 9; FN, spherefed-ce: FedFN section 5.1, appendix D.3
    **_fn(0.5), "dr": 5.0, "feddr+": 5.0, "spherefed": 6.5, "spherefed-ce": 0.3, "fedetf": 0.5,
    "fedgela": 0.1,
}  # fmt: skip
# FedDr+ table 10 (ImageNet-100); FN: ours, as on CIFAR-100
_RESNET_RATES = {"fedgela": 0.1, **dict.fromkeys(("dr", "feddr+", "spherefed", "fedetf"), 1.0)}
_DIGITS_RATES = {
    **_fn(0.1), "dr": 0.3, "feddr+": 0.3, "spherefed": 0.5, "spherefed-ce": 0.1, "fedetf": 0.1,
    "scaffold": 0.02,  # at 0.05 it diverges after dozens of rounds
    # 0.05 diverges with a momentum that lasts across rounds
    "centralised": 0.01, "centralised+babu": 0.01,
}  # fmt: skip

_FEDNTD_CNN = Setting(
    local_epochs=5, lr=Rate(0.01), rates=_rates(TUNED, _CNN_RATES), lr_schedule="exponential",
    augmentation="crop flip cutout", test_batch_size=FEDNTD_TEST_BATCH,
    extras={"fedprox": {"mu": 0.1}, "fedntd": {"beta": 1.0, "tau": 1.0}},
    source="FedNTD appendix B.3, tables 4, 5; DR and FN rates are ours, see docs/methods.md",
)  # fmt: skip
# FedNTD's setting on other data, or with another model, than our rates were tuned on
_FEDNTD = replace(_FEDNTD_CNN, rates=_rates(GUESS, _CNN_RATES))
_FEDDR_EXTRAS = {"fedprox": {"mu": 0.001}, "fedntd": {"beta": 1.0, "tau": 3.0}}  # tables 8-10
_VGG11 = Setting(
    local_epochs=10, lr=Rate(0.01), rates=_rates(PUBLISHED, _VGG_RATES), augmentation="crop flip",
    extras=_FEDDR_EXTRAS, source="FedDr+ tables 7 and 8; FedFN section 5.1 for fedfn",
)  # fmt: skip
_IMAGENET = Setting(
    local_epochs=5, lr=Rate(0.1), augmentation="rrc flip", extras=_FEDDR_EXTRAS,
    rates={**_rates(PUBLISHED, _RESNET_RATES), **_rates(GUESS, _fn(0.5))},
    test_batch_size=FEDNTD_TEST_BATCH,  # as for CIFAR-100
    source="FedDr+ tables 7 and 10; FN rates are ours",
)  # fmt: skip

# All methods of a row share local epochs and augmentation, so that methods can be compared. FedFN
# trains VGG11 for 15 epochs and MobileNet for 5, with flips only: its presets set this.
SETTINGS: dict[tuple[str, str], Setting] = {
    ("digits", "cnn"): Setting(
        local_epochs=1, lr=Rate(0.05, TUNED), rates=_rates(TUNED, _DIGITS_RATES), batch_size=10,
        source="chosen here, see docs/methods.md",
    ),
    ("mnist", "cnn"): replace(_FEDNTD, local_epochs=3),
    ("fashion-mnist", "cnn"): _guessed(_FEDNTD, local_epochs=3, source="as MNIST in FedNTD"),
    ("cifar10", "cnn"): _FEDNTD_CNN,
    ("cifar100", "cnn"): _FEDNTD,
    ("cinic10", "cnn"): replace(_FEDNTD, augmentation="crop-reflect flip"),
    ("cifar10", "resnet10"): replace(
        _FEDNTD, source="FedNTD appendix G.3; DR and FN rates are ours"
    ),
    ("images", "cnn"): _guessed(_FEDNTD, source="as CIFAR-10 in FedNTD"),
    ("cifar10", "vgg11"): _VGG11,
    ("cifar10", "resnet18"): Setting(
        local_epochs=15, lr=Rate(0.01), rates=_rates(PUBLISHED, _fn(0.1)), augmentation="flip",
        source="FedFN section 5.2",
    ),
    ("cifar100", "mobilenet"): Setting(
        local_epochs=3, lr=Rate(0.1), rates=_rates(PUBLISHED, _MOBILENET_RATES),
        augmentation="crop flip", extras=_FEDDR_EXTRAS,
        test_batch_size=FEDNTD_TEST_BATCH,  # FedDr+ made its table 3 with FedNTD's code
        other_rates={(5, "flip"): {"spherefed": Rate(4.5)}},  # FedFN appendices C.2 and D.3
        source="FedDr+ tables 7 and 9; FedFN section 5.1 for fedfn",
    ),
    ("imagenet100", "resnet18"): _IMAGENET,
    ("tiny-imagenet", "resnet18"): _guessed(
        _IMAGENET, augmentation="crop flip", extras={}, test_batch_size=FEDBABU_TEST_BATCH,
        source="as ImageNet-100: no paper trains one model for all on it",
    ),
    ("flowers102", "resnet18"): _guessed(
        _IMAGENET, batch_size=10, extras={}, test_batch_size=FEDBABU_TEST_BATCH,
        source="as ImageNet-100, in smaller batches: no paper trains one model for all on it",
    ),
}  # fmt: skip

# The settings of pairs without a row; photos of many sizes cannot be cropped with padding.
_NO_ROW = "no published setting for this pair: "
GENERAL = _guessed(_VGG11, local_epochs=5, extras={}, source=f"{_NO_ROW}VGG11's rates")
PHOTOS = _guessed(_IMAGENET, test_batch_size=FEDBABU_TEST_BATCH, source=f"{_NO_ROW}ResNet-18's")

# The FedDOR paper's: how methods with a model per client train, on every data set.
MODEL_PER_CLIENT: dict[str, Any] = {
    "local_epochs": 1, "batch_size": 32, "lr": 0.01, "lr_schedule": "constant", "momentum": 0.0,
    "weight_decay": 0.0, "augmentation": "none",
}  # fmt: skip
# Classes of each client in partitions that give all clients equally many; on other data 2.
CLASSES_PER_CLIENT = {"cifar100": 10, "flowers102": 10, "tiny-imagenet": 20}


# The weights that FedDr+ tuned for every base loss with every regulariser (its table 12).
# beta * base + (1 - beta) * regulariser needs a different beta for each pair, because the sizes of
# the terms differ widely. The tuning used CIFAR-100, MobileNet, 10 shards or LDA 0.1. Table 13 of
# the paper takes 0.9 everywhere.
TUNED_ON = ("cifar100", "mobilenet")
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
