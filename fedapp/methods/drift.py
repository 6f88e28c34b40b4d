"""Rows of the method table for methods that reduce client drift.

They correct the gradients (SCAFFOLD), the sum of updates (FedNova) or the loss (MOON, FedDyn,
FedCurv). Most of their clients keep a state between rounds, which `Exchange.keeps` names.
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
        "Contrastive loss between the features of the local, the global and the previous model",
        "Li Q. et al. 2021, CVPR, equation 5; projection head with bottleneck-layers=2",
        loss=LossSpec(regulariser="moon", combine=ADD, weight="mu"),
        defaults={"mu": 1.0, "tau": 0.5},
    ),
    "fednova": Method(
        "Client updates normalised by the number of local steps",
        "Wang et al. 2020, NeurIPS, equation 6",
        client=ClientSpec(FedNovaClient, options={"correction": "fednova-correction"}),
        server=ServerSpec(FedNova, options={"epochs": "local-epochs", "momentum": "momentum"}),
        exchange=Exchange(
            also_sends="a_i", keeps="mean gradient", keeps_if=("fednova-correction", "own")
        ),
        keys={
            "fednova-correction": Key(
                Literal["none", "own"],
                "none",
                "FedNova: none, or subtract the client's own last mean gradient from its gradients",
            ),
        },
    ),
    "feddyn": Method(
        "Dynamic regularisation: a linear term per client, uniform mean",
        "Acar et al. 2021, ICLR, algorithm 1",
        client=ClientSpec(FedDynClient, options={"alpha": "feddyn-alpha"}),
        server=ServerSpec(FedDyn, options={"alpha": "feddyn-alpha", "evaluate": "feddyn-evaluate"}),
        exchange=Exchange(keeps="g_i"),
        fixed={"weights": "uniform"},  # the server's h is an unweighted sum over clients
        keys={
            "feddyn-alpha": Key(Positive, 0.1, "FedDyn: weight of the quadratic term"),
            "feddyn-evaluate": Key(
                Literal["server", "mean"],
                "server",
                "FedDyn: test the server's model, or the mean of the round's client models",
            ),
        },
    ),
    "fedcurv": Method(
        "Penalty on changes of parameters that are important to other clients",
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
            "fedcurv-lambda": Key(Weight, 1.0, "FedCurv: weight of the penalty"),
            "fedcurv-samples": Key(
                Count, 500, "FedCurv: training examples per client that measure the importance"
            ),
            "fedcurv-per-sample": Key(
                bool,
                False,
                "FedCurv: importance from gradients of examples, not of batches; slower",
            ),
            "fedcurv-accumulate": Key(
                bool, False, "FedCurv: penalty from all clients so far, not only the last round's"
            ),
        },
    ),
}
