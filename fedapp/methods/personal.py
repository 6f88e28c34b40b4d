"""Rows of the method table whose clients train personal models.

Their accuracy is that of the personal models, each tested on its client's own test split.
"""

from clients.ditto import DittoClient
from clients.fedrep import FedRepClient
from clients.per_fedavg import PerFedAvgClient
from clients.personal_part import PersonalPartClient
from fedapp.core.keys import Key, Positive, Unsigned, Weight
from fedapp.methods.row import CLIENT_MEAN, ClientSpec, Exchange, HeadSpec, LossSpec, Method
from fedapp.models.model import ALL_BUT_NORMS

PERSONAL: dict[str, Method] = {
    "local": Method(
        "Every client trains alone",
        "the FedBABU authors' code: 160 epochs, x0.1 at 80 and 120",
        client=ClientSpec(PersonalPartClient),
        exchange=Exchange(sends="nothing", keeps="model"),
        accuracy=CLIENT_MEAN,
    ),
    "local-etf": Method(
        "Every client trains alone on a frozen simplex ETF",
        "Kim et al. 2024 (FedDr+), table 5, CE+ETF",
        head=HeadSpec("etf", options={"frozen": "local-etf-frozen"}),
        client=ClientSpec(PersonalPartClient),
        exchange=Exchange(sends="nothing", keeps="model"),
        accuracy=CLIENT_MEAN,
        keys={
            "local-etf-frozen": Key(
                bool, True, "local-etf: keep the ETF frozen, or train it from that start"
            ),
        },
    ),
    "local-dr": Method(
        "Every client trains alone with dot-regression",
        "Kim et al. 2024 (FedDr+), table 5",
        head=HeadSpec("etf"),
        loss=LossSpec("dr"),
        client=ClientSpec(PersonalPartClient),
        exchange=Exchange(sends="nothing", keeps="model"),
        accuracy=CLIENT_MEAN,
        settings_of="dr",
    ),
    "fedper": Method(
        "Shared body and personal head, trained together",
        "Arivazhagan et al. 2019, arXiv 1912.00818, algorithm 1",
        client=ClientSpec(PersonalPartClient),
        exchange=Exchange(sends="body", keeps="head"),
        accuracy=CLIENT_MEAN,
    ),
    "fedrep": Method(
        "Shared body and personal head, trained one after the other",
        "Collins et al. 2021, ICML, algorithm 1",
        client=ClientSpec(FedRepClient),
        exchange=Exchange(sends="body", keeps="head"),
        accuracy=CLIENT_MEAN,
    ),
    "fedbn": Method(
        "Shared model, personal normalisation layers",
        "Li X. et al. 2021, ICLR, algorithm 1",
        client=ClientSpec(PersonalPartClient),
        exchange=Exchange(sends=ALL_BUT_NORMS, keeps="normalisation layers"),
        accuracy=CLIENT_MEAN,
        needs="has_batch_norm",
    ),
    "ditto": Method(
        "Personal models pulled towards the global model",
        "Li et al. 2021, ICML, algorithm 1",
        client=ClientSpec(
            DittoClient,
            options={
                "pull": "ditto-lambda",
                "reference": "ditto-reference",
                "first_lr": "lr",
            },
        ),
        exchange=Exchange(keeps="personal model"),
        accuracy=CLIENT_MEAN,
        keys={
            "ditto-lambda": Key(Weight, 0.75, "Ditto: weight of the pull towards the global model"),
            "ditto-reference": Key(
                bool, False, "Ditto: as in its reference code, which averages the personal models"
            ),
        },
    ),
    "per-fedavg": Method(
        "First-order meta-learning: one gradient step personalises the model",
        "Fallah et al. 2020, NeurIPS, algorithm 1 (FO)",
        client=ClientSpec(
            PerFedAvgClient,
            options={
                "outer_lr": "per-fedavg-beta",
                "constant": "per-fedavg-constant",
                "first_lr": "lr",
                "adapt_epochs": "per-fedavg-adapt-epochs",
            },
        ),
        accuracy=CLIENT_MEAN,
        keys={
            "per-fedavg-beta": Key(Positive, 0.1, "Per-FedAvg: outer learning rate in round 1"),
            "per-fedavg-constant": Key(
                bool, False, "Per-FedAvg: constant outer rate, as in the reference code"
            ),
            "per-fedavg-adapt-epochs": Key(
                Unsigned, 0, "Per-FedAvg: epochs of plain SGD before an evaluation; 0: one step"
            ),
        },
    ),
}
