"""THE METHOD TABLE: one row per method, and the only place that knows method names.

A method is a head, a base loss, a regulariser, a client and a strategy. A new method that only
recombines these is one more row here. The columns are explained in `fedapp.methods.row`; `fedapp
methods` prints them.
"""

from collections.abc import Mapping
from typing import Any

from clients.fedalign import FedAlignClient
from clients.fedgela import FrequencyScaledClient
from clients.fedsol import FedSOLClient
from clients.training.objective import REGULARISERS
from fedapp.core.errors import UserError
from fedapp.methods.centralised import CENTRALISED
from fedapp.methods.drift import DRIFT
from fedapp.methods.fine_tuned import fine_tuned
from fedapp.methods.heterogeneous import HETEROGENEOUS
from fedapp.methods.personal import PERSONAL
from fedapp.methods.row import ADD, PERTURB, Method, Stage, Value
from strategies.fedavgm import FedAvgM
from strategies.fedexp import FedExP

_FEDEXP: dict[str, Any] = {
    "strategy": FedExP,
    "options": {
        "epsilon": "fedexp-epsilon",
        "step": "fedexp-step",
        "evaluate": "fedexp-evaluate",
    },
}

METHODS: dict[str, Method] = {
    "fedavg": Method("Federated averaging", "McMahan et al. 2017, AISTATS, algorithm 1"),
    "fedprox": Method(
        "FedAvg with a proximal term",
        "Li et al. 2020, MLSys, equation 2",
        regulariser="prox",
        combine=ADD,
        weight="mu",
        defaults={"mu": 0.001},
    ),
    "fedbabu": Method(
        "Body aggregated, head random and frozen",
        "Oh et al. 2022, ICLR, algorithm 1",
        head="frozen-random",
        sends="theta",
        stage=Stage(part="all", factor=0.01),
    ),
    "dr": Method(
        "Dot-regression on a frozen simplex-ETF head",
        "Yang et al. 2022, NeurIPS, equation 9; FedDr+ section 2.2",
        head="etf",
        loss="dr",
        sends="theta",
    ),
    "feddr+": Method(
        "Dot-regression with feature distillation",
        "Kim et al. 2024, arXiv; TMLR 2025, equation 1",
        head="etf",
        loss="dr",
        regulariser="fd",
        defaults={"beta": 0.9},
        sends="theta",
    ),
    "fedfn": Method(
        "Feature normalisation before the head",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, section 4",
        head="normalised-linear",
        head_options={"bias": "fedfn-bias"},
        stage=Stage(protocol="fedfn"),
    ),
    "fedntd": Method(
        "Distillation of the not-true logits",
        "Lee et al. 2022, NeurIPS, equations 10-11",
        regulariser="ntd",
        combine=ADD,
        defaults={"beta": 1.0, "tau": 1.0},
    ),
    "fedntd-mse": Method(
        "Squared difference of the not-true logits",
        "Lee et al. 2022, NeurIPS, table 14",
        regulariser="ntd-mse",
        combine=ADD,
        defaults={"beta": 0.05},
    ),
    "kd-ntd": Method(
        "Between distillation of all and of the not-true logits",
        "Lee et al. 2022, NeurIPS, appendix H, equations 17-18",
        regulariser="kd-ntd",
        combine=ADD,
        defaults={"beta": 1.0, "tau": 1.0},
    ),
    "fedsol": Method(
        "Gradients where the pull to the global model is strong",
        "Lee et al. 2024, CVPR",
        regulariser="kd",
        combine=PERTURB,
        client=FedSOLClient,
        client_options={
            "rho": "fedsol-rho",
            "adaptive": "fedsol-adaptive",
            "part": "fedsol-part",
        },
        defaults={"tau": 3.0},
    ),
    "fedalign": Method(
        "Alike stretch of features at full and part width of the last block",
        "Mendieta et al. 2022, CVPR; weights as FedNTD appendix J",
        client=FedAlignClient,
        client_options={"mu": "fedalign-mu", "width": "fedalign-width"},
        models=("resnet10", "resnet18", "resnet18-imagenet-stem"),
    ),
    "spherefed": Method(
        "Squared error of cosines to a frozen orthonormal head",
        "Dong et al. 2022, ECCV; mean over classes",
        head="orthonormal",
        loss="cosine-mse",
        sends="theta",
        stage=Stage(factor=0.01),
    ),
    "spherefed-ce": Method(
        "Cross-entropy of tau times the cosines",
        "Dong et al. 2022, ECCV; FedFN appendix",
        head="orthonormal",
        scale_key="tau",
        defaults={"tau": 1.0},
        sends="theta",
        stage=Stage(protocol="fedfn"),
    ),
    "fedetf": Method(
        "Balanced cross-entropy on a simplex ETF, learnable scale",
        "Li et al. 2023, ICCV, equation 6",
        head="etf-scaled",
        head_options={"learn_scale": "fedetf-learn-scale"},
        scale_key="fedetf-scale-init",
        loss="balanced-ce",
        sends="theta",
        also_sends="scale",
        stage=Stage(turns=True),
    ),
    "fedgela": Method(
        "Simplex ETF scaled by each client's class frequencies",
        "Fan et al. 2023, NeurIPS, equation 5",
        head="etf",
        head_options={"normalise": "fedgela-normalise"},
        loss="scaled-ce",
        sends="theta",
        client=FrequencyScaledClient,
    ),
    "fedfr": Method(
        "Regularised feature norm",
        "Kim et al. 2023, FL@FM-NeurIPS workshop, appendix D.6",
        regulariser="norm",
        combine=ADD,
        weight="mu",
        defaults={"mu": 0.005},
    ),
    "fedexp": Method(
        "Extrapolated mean",
        "Jhunjhunwala et al. 2023, ICLR, equation 5",
        **_FEDEXP,
    ),
    "fedavgm": Method(
        "Server momentum",
        "Hsu et al. 2019, arXiv 1909.06335",
        strategy=FedAvgM,
        options={"beta": "fedavgm-beta"},
    ),
    "fedexp+babu": Method(
        "FedExP with the head frozen",
        "Kim et al. 2023 (FedFN), table 2",
        head="frozen-random",
        **_FEDEXP,
        sends="theta",
    ),
    "fedexp+fn": Method(
        "FedExP with feature normalisation",
        "Kim et al. 2023 (FedFN), table 2",
        head="normalised-linear",
        head_options={"bias": "fedfn-bias"},
        **_FEDEXP,
    ),
    **DRIFT,
    **CENTRALISED,
    **PERSONAL,
}

METHODS |= fine_tuned(METHODS)
METHODS |= HETEROGENEOUS

# What a key means when neither the user, the method nor the data set says otherwise.
FALLBACKS: dict[str, Value] = {
    "beta": 0.9,
    "mu": 0.001,
    "tau": 3.0,
    "momentum": 0.9,
    "weight_decay": 1e-5,
}


def find_method(name: str) -> Method:
    """Return the row of a method; raises UserError that lists all names for an unknown one."""
    if name in METHODS:
        return METHODS[name]
    raise UserError(f"method '{name}' is not in the table; choose one of {', '.join(METHODS)}")


def kept_by_clients(values: Mapping[str, Any]) -> str:
    """Return what clients keep between rounds; empty: nothing.

    `values` are those of a configuration by key; keys that are left out have their defaults.
    """
    row, regulariser = find_method(values["method"]), values.get("regulariser", "auto")
    own = row.regulariser if regulariser == "auto" else regulariser
    return row.kept(None if own == "none" else own, values)


def check_regulariser(name: str, regulariser: str) -> None:
    """Raise UserError when a regulariser is asked for that a method cannot take."""
    row = find_method(name)
    if regulariser not in REGULARISERS:
        raise UserError(
            f"regulariser '{regulariser}' is unknown; choose one of {', '.join(REGULARISERS)}"
        )
    if not row.client.takes_regulariser:
        raise UserError(
            f"method '{name}' trains two models on losses of its own and takes no regulariser; set "
            "regulariser on a base method such as fedavg or dr"
        )
    if row.regulariser is not None and row.regulariser != regulariser:
        raise UserError(
            f"method '{name}' already has the regulariser '{row.regulariser}', so it cannot also "
            f"take '{regulariser}'; set regulariser on a base method such as fedavg or dr"
        )
