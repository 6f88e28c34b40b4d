"""Rows of the method table for methods against client drift that correct steps, sums or penalties.

Clients of most of them keep something between rounds; what it is stands in `keeps`.
"""

from typing import Any, Literal

from clients.fedcurv import FedCurvClient
from clients.feddyn import FedDynClient
from clients.fednova import FedNovaClient
from clients.scaffold import ScaffoldClient
from fedapp.core.keys import Count, Key, Positive, Weight
from fedapp.methods.row import ADD, ClientSpec, Exchange, HeadSpec, LossSpec, Method, ServerSpec
from strategies.fedcurv import FedCurv
from strategies.feddyn import FedDyn
from strategies.fednova import FedNova
from strategies.scaffold import Scaffold

_SCAFFOLD: dict[str, Any] = {
    "client": ClientSpec(ScaffoldClient),
    "server": ServerSpec(Scaffold),
    "exchange": Exchange(also_sends="control variates", keeps="c_i"),
}

DRIFT: dict[str, Method] = {
    "scaffold": Method(
        "Gradients corrected by control variates",
        "Karimireddy et al. 2020, ICML, algorithm 1, option II",
        **_SCAFFOLD,
    ),
    "scaffold+babu": Method(
        "SCAFFOLD with the head frozen",
        "Kim et al. 2023 (FedFN), table 2",
        head=HeadSpec("frozen-random"),
        **_SCAFFOLD,
    ),
    "scaffold+fn": Method(
        "SCAFFOLD with feature normalisation",
        "Kim et al. 2023 (FedFN), table 2",
        head=HeadSpec("normalised-linear", options={"bias": "fedfn-bias"}),
        **_SCAFFOLD,
    ),
    "moon": Method(
        "Features drawn to the global model's, away from the own last one's",
        "Li Q. et al. 2021, CVPR, equation 5; projection head with bottleneck-layers=2",
        loss=LossSpec(regulariser="moon", combine=ADD, weight="mu"),
        defaults={"mu": 1.0, "tau": 0.5},
    ),
    "fednova": Method(
        "Updates divided by their number of steps",
        "Wang et al. 2020, NeurIPS, equation 6",
        client=ClientSpec(FedNovaClient, options={"correction": "fednova-correction"}),
        server=ServerSpec(FedNova, options={"epochs": "local-epochs", "momentum": "momentum"}),
        exchange=Exchange(
            also_sends="a_i", keeps="mean gradient", keeps_with=("fednova-correction", "own")
        ),
        keys={
            "fednova-correction": Key(
                Literal["none", "own"],
                "none",
                "FedNova's gradients as they are, or less the client's own last mean one",
            ),
        },
    ),
    "feddyn": Method(
        "Dynamic regularisation: a linear term per client, uniform mean",
        "Acar et al. 2021, ICLR, algorithm 1",
        client=ClientSpec(FedDynClient, options={"alpha": "feddyn-alpha"}),
        server=ServerSpec(FedDyn, options={"alpha": "feddyn-alpha"}),
        exchange=Exchange(keeps="g_i"),
        keys={
            "feddyn-alpha": Key(Positive, 0.1, "FedDyn's weight of the quadratic term"),
        },
    ),
    "fedcurv": Method(
        "Parameters held where they mattered to the others",
        "Shoham et al. 2019, NeurIPS workshop, equation 5",
        client=ClientSpec(
            FedCurvClient,
            options={
                "accumulate": "fedcurv-accumulate",
                "weight": "fedcurv-lambda",
                "samples": "fedcurv-samples",
                "per_sample": "fedcurv-per-sample",
            },
        ),
        server=ServerSpec(FedCurv, options={"accumulate": "fedcurv-accumulate"}),
        exchange=Exchange(also_sends="u, u w", keeps="u_i, u_i w_i"),
        keys={
            "fedcurv-lambda": Key(Weight, 1.0, "FedCurv's weight of the penalty"),
            "fedcurv-samples": Key(
                Count, 500, "training examples of a client that FedCurv measures importance on"
            ),
            "fedcurv-per-sample": Key(
                bool, False, "importance by gradients of examples, not of mini-batches; slower"
            ),
            "fedcurv-accumulate": Key(
                bool, False, "FedCurv's penalty by all clients so far, not by the last round's"
            ),
        },
    ),
}
