"""THE METHOD TABLE: one row per method. No other code asks for the name of a method.

A method consists of a head, a base loss, a regulariser, a client and a strategy. A new method that
only recombines these is one more row here. `fedapp.methods.row` explains the columns; the command
`fedapp methods` prints them.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from clients.fedalign import FedAlignClient
from clients.fedgela import FrequencyScaledClient
from clients.fedsam import FedSAMClient
from clients.fedsol import FedSOLClient
from clients.training.objective import REGULARISERS
from fedapp.core.errors import OWN, UserError, unknown
from fedapp.core.keys import Key, Part, Positive, Weight
from fedapp.methods.centralised import CENTRALISED
from fedapp.methods.drift import DRIFT
from fedapp.methods.fine_tuned import FINE_TUNING_KEYS, fine_tuned_rows
from fedapp.methods.heterogeneous import HETEROGENEOUS
from fedapp.methods.heterogeneous_keys import SHARED
from fedapp.methods.label_skew import LABEL_SKEW
from fedapp.methods.personal import PERSONAL
from fedapp.methods.row import (
    ADD,
    PERTURB,
    ClientSpec,
    Exchange,
    FineTuning,
    HeadSpec,
    LossSpec,
    Method,
)
from fedapp.methods.server import SERVER

METHODS: dict[str, Method] = {
    "fedavg": Method(
        "Federated averaging",
        "McMahan et al. 2017, AISTATS, algorithm 1",
    ),
    "fedprox": Method(
        "FedAvg with a proximal term",
        "Li et al. 2020, MLSys, equation 2",
        loss=LossSpec(regulariser="prox", combine=ADD, weight="mu"),
        defaults={"mu": 0.001},
    ),
    "fedbabu": Method(
        "Aggregated body, random frozen head",
        "Oh et al. 2022, ICLR, algorithm 1",
        head=HeadSpec("frozen-random"),
        fine_tuning=FineTuning(part="all", factor=0.01),
    ),
    "dr": Method(
        "Dot-regression on a frozen simplex-ETF head",
        "Yang et al. 2022, NeurIPS, equation 9; FedDr+ section 2.2",
        head=HeadSpec("etf"),
        loss=LossSpec("dr"),
    ),
    "feddr+": Method(
        "Dot-regression with feature distillation",
        "Kim et al. 2024, arXiv; TMLR 2025, equation 1",
        head=HeadSpec("etf"),
        loss=LossSpec("dr", "fd"),
        defaults={"beta": 0.9},
    ),
    "fedfn": Method(
        "Feature normalisation before the head",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, section 4",
        head=HeadSpec("normalised-linear", options={"bias": "fedfn-bias"}),
        fine_tuning=FineTuning(protocol="fedfn"),
        keys={
            "fedfn-bias": Key(bool, False, "give the head of fedfn and X+fn a bias"),
        },
    ),
    "fedntd": Method(
        "Distillation of the not-true logits",
        "Lee et al. 2022, NeurIPS, equations 10-11",
        loss=LossSpec(regulariser="ntd", combine=ADD),
        defaults={"beta": 1.0, "tau": 1.0},
        keys={
            "ntd-tau-squared": Key(
                bool,
                True,
                "multiply NTD by tau squared, as in FedNTD's code but not its equation",
            ),
        },
    ),
    "fedntd-mse": Method(
        "Squared difference of the not-true logits",
        "Lee et al. 2022, NeurIPS, table 14",
        loss=LossSpec(regulariser="ntd-mse", combine=ADD),
        defaults={"beta": 0.05},
    ),
    "kd-ntd": Method(
        "Interpolation between distillation of all logits and of the not-true logits",
        "Lee et al. 2022, NeurIPS, appendix H, equations 17-18",
        loss=LossSpec(regulariser="kd-ntd", combine=ADD),
        defaults={"beta": 1.0, "tau": 1.0},
        keys={
            "kd-ntd-lambda": Key(
                Annotated[float, Field(ge=0, le=1)], 0.5, "kd-ntd: share of NTD; the rest is KD"
            ),
        },
    ),
    "fedsol": Method(
        "Gradients at weights perturbed along the distillation gradient",
        "Lee et al. 2024, CVPR",
        loss=LossSpec(regulariser="kd", combine=PERTURB),
        client=ClientSpec(
            FedSOLClient,
            options={
                "rho": "fedsol-rho",
                "adaptive": "fedsol-adaptive",
                "part": "fedsol-part",
            },
        ),
        defaults={"tau": 3.0},
        keys={
            "fedsol-rho": Key(Weight, 2.0, "FedSOL: length of the perturbation"),
            "fedsol-adaptive": Key(
                bool,
                True,
                "FedSOL: perturb weights in proportion to their change, or uniformly",
            ),
            "fedsol-part": Key(
                Literal["all", "body", "head"], "all", "FedSOL: perturbed part of the model"
            ),
        },
    ),
    "fedsam": Method(
        "Gradients at weights perturbed along the gradient of the loss",
        "Qu et al. 2022, ICML, algorithm 1; Caldarola et al. 2022, ECCV",
        client=ClientSpec(FedSAMClient, options={"rho": "fedsam-rho"}),
        keys={"fedsam-rho": Key(Weight, 0.05, "FedSAM: length of the perturbation")},
    ),
    "fedalign": Method(
        "Equal Lipschitz estimates of the last stage at full and reduced width",
        "Mendieta et al. 2022, CVPR",
        client=ClientSpec(FedAlignClient, options={"mu": "fedalign-mu", "width": "fedalign-width"}),
        needs="has_basic_blocks",
        keys={
            "fedalign-mu": Key(Weight, 0.45, "FedAlign: alignment, as a share of the loss"),
            "fedalign-width": Key(Part, 0.25, "FedAlign: share of the channels at reduced width"),
        },
    ),
    "spherefed": Method(
        "Squared error of cosines to a frozen orthonormal head",
        "Dong et al. 2022, ECCV; mean over classes",
        head=HeadSpec("orthonormal"),
        loss=LossSpec("cosine-mse", options={"reduction": "spherefed-reduction"}),
        fine_tuning=FineTuning(factor=0.01),
        keys={
            "spherefed-reduction": Key(
                Literal["mean", "sum-classes"],
                "mean",
                "SphereFed: mean or sum of the squared error over classes",
            ),
        },
    ),
    "spherefed-ce": Method(
        "Cross-entropy of tau times the cosines",
        "Dong et al. 2022, ECCV; FedFN appendix",
        head=HeadSpec("orthonormal", scale_key="tau"),
        defaults={"tau": 1.0},
        fine_tuning=FineTuning(protocol="fedfn"),
    ),
    "fedetf": Method(
        "Balanced cross-entropy on a simplex ETF with a learnable scale",
        "Li et al. 2023, ICCV, equation 6",
        head=HeadSpec(
            "etf-scaled",
            options={"learn_scale": "fedetf-learn-scale"},
            scale_key="fedetf-scale-init",
        ),
        loss=LossSpec("balanced-ce", options={"missing": "fedetf-missing"}),
        exchange=Exchange(also_sends="scale"),
        fine_tuning=FineTuning(turns=True),
        keys={
            "fedetf-missing": Key(
                Literal["clamp", "exclude"],
                "clamp",
                "FedETF: count classes that a client lacks as 1, or leave them out of the softmax",
            ),
            "fedetf-learn-scale": Key(bool, True, "FedETF: learn the scale of the logits"),
            "fedetf-scale-init": Key(Positive, 1.0, "FedETF: initial or fixed logit scale"),
        },
    ),
    "fedgela": Method(
        "Simplex ETF scaled by each client's class frequencies",
        "Fan et al. 2023, NeurIPS, equation 5",
        head=HeadSpec("etf", options={"normalise": "fedgela-normalise"}),
        loss=LossSpec("scaled-ce", options={"temperature": "fedgela-temperature"}),
        client=ClientSpec(FrequencyScaledClient),
        keys={
            "fedgela-normalise": Key(bool, False, "FedGELA: normalise features"),
            "fedgela-temperature": Key(
                Positive, 1.0, "FedGELA: temperature that divides the logits in the loss"
            ),
        },
    ),
    "fedfr": Method(
        "Regularised feature norm",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, appendix D.6",
        loss=LossSpec(regulariser="norm", combine=ADD, weight="mu"),
        defaults={"mu": 0.005},
    ),
    **SERVER,
    **DRIFT,
    **LABEL_SKEW,
    **CENTRALISED,
    **PERSONAL,
}

METHODS |= fine_tuned_rows(METHODS)
METHODS |= HETEROGENEOUS
BUILT_IN = frozenset(METHODS)  # users add rows of their own later


def method_keys(without: Collection[str] = ()) -> dict[str, Key]:
    """Return the run-config keys of all methods by name, or of all but some.

    Raises:
        ValueError: two methods declare the same name differently.
    """
    declared: dict[str, Key] = {}
    rows = (row.keys for name, row in METHODS.items() if name not in without)
    for keys in (*rows, FINE_TUNING_KEYS, SHARED):
        for name, key in keys.items():
            if declared.setdefault(name, key) is not key:
                raise ValueError(f"two methods declare the key '{name}' differently")
    return declared


# Values of keys at "auto" if neither the method nor the setting of the data set has one.
FALLBACKS: dict[str, Any] = {
    "beta": 0.9,
    "mu": 0.001,
    "tau": 3.0,
    "momentum": 0.9,
    "weight_decay": 1e-5,
}


def find_method(name: str) -> Method:
    """Return the row of a method; raises UserError if the table has no such method."""
    if name not in METHODS:
        raise unknown("method", name, METHODS, OWN)
    return METHODS[name]


def kept_by_clients(values: Mapping[str, Any]) -> str:
    """Return what clients keep between rounds; empty: nothing.

    `values` holds the values of a configuration by key; missing keys have their defaults.
    """
    row, regulariser = find_method(values["method"]), values.get("regulariser", "auto")
    own = row.loss.regulariser if regulariser == "auto" else regulariser
    return row.kept(None if own == "none" else own, values)


def check_regulariser(name: str, regulariser: str) -> None:
    """Raise UserError if a method cannot take a regulariser."""
    row = find_method(name)
    if regulariser not in REGULARISERS:
        raise unknown("regulariser", regulariser, REGULARISERS, OWN)
    if not row.client.kind.takes_regulariser:
        raise UserError(
            f"method '{name}' has a loss of its own, which takes no regulariser; set regulariser "
            "on a base method such as fedavg or dr"
        )
    own = row.loss.regulariser
    if own is not None and own != regulariser:
        raise UserError(
            f"method '{name}' already has the regulariser '{own}', so it cannot also "
            f"take '{regulariser}'; set regulariser on a base method such as fedavg or dr"
        )


def check_fitting(name: str, regulariser: str) -> None:
    """Raise UserError if a method's updates would be wrong with a regulariser."""
    if why := find_method(name).client.kind.unfit_regularisers.get(regulariser):
        raise UserError(
            f"method '{name}' does not fit the regulariser '{regulariser}': {why}; choose another"
        )
