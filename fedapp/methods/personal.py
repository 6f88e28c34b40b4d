"""Rows of the method table whose clients train personal models.

Their accuracy is that of the personal models, each tested on its client's own test split.
"""

from clients.apfl import APFLClient
from clients.ditto import DittoClient
from clients.fedala import FedALAClient
from clients.fedrep import FedRepClient
from clients.fedrod import FedRoDClient
from clients.ifca import IFCAClient
from clients.per_fedavg import PerFedAvgClient
from clients.personal_part import PersonalPartClient
from clients.pfedme import PFedMeClient
from fedapp.core.keys import Clusters, Count, Key, Positive, Share, Unsigned, Weight
from fedapp.methods import personal_parts as parts
from fedapp.methods.row import (
    CLIENT_MEAN,
    ClientSpec,
    Exchange,
    HeadSpec,
    LossSpec,
    Method,
    ServerSpec,
)
from fedapp.models.model import ALL_BUT_NORMS
from strategies.ifca import IFCA
from strategies.pfedme import PFedMe

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
    "apfl": Method(
        "A mixture of the global model and a model of the client's own",
        "Deng et al. 2020, arXiv 2003.13461, algorithm 1",
        client=ClientSpec(APFLClient, options={"share": "apfl-alpha", "adaptive": "apfl-adaptive"}),
        exchange=Exchange(keeps="own model, its share"),
        accuracy=CLIENT_MEAN,
        keys={
            "apfl-alpha": Key(Share, 0.5, "APFL: share of the client's own model in round 1"),
            "apfl-adaptive": Key(bool, True, "APFL: learn each client's share"),
        },
    ),
    "pfedme": Method(
        "Personal models tied to the global model by Moreau envelopes",
        "T. Dinh et al. 2020, NeurIPS, algorithm 1",
        client=ClientSpec(
            PFedMeClient,
            options={
                "pull": "pfedme-lambda",
                "steps": "pfedme-steps",
                "outer_lr": "pfedme-eta",
                "first_lr": "lr",
            },
        ),
        server=ServerSpec(PFedMe, {"beta": "pfedme-beta"}),
        exchange=Exchange(keeps="personal model"),
        accuracy=CLIENT_MEAN,
        keys={
            "pfedme-lambda": Key(Positive, 15.0, "pFedMe: weight of the pull to the global model"),
            "pfedme-steps": Key(Count, 5, "pFedMe: steps of the personal model for each batch"),
            "pfedme-eta": Key(Positive, 0.005, "pFedMe: rate of the sent model in round 1"),
            "pfedme-beta": Key(Positive, 1.0, "pFedMe: the server's step to the clients' mean"),
        },
    ),
    "fedrod": Method(
        "A shared head for all classes and an own head for the client's",
        "Chen and Chao 2022, ICLR; linear own head",
        loss=LossSpec("balanced-softmax"),
        client=ClientSpec(FedRoDClient),
        exchange=Exchange(keeps="own head"),
        accuracy=CLIENT_MEAN,
    ),
    "fedala": Method(
        "Training starts between the global and the client's last model, as learned",
        "Zhang J. et al. 2023, AAAI, algorithm 1",
        client=ClientSpec(
            FedALAClient,
            options={"eta": "fedala-eta", "part": "fedala-data", "layers": "fedala-layers"},
        ),
        exchange=Exchange(keeps="last top layers, shares"),
        accuracy=CLIENT_MEAN,
        keys={
            "fedala-eta": Key(Positive, 1.0, "FedALA: learning rate of the shares"),
            "fedala-data": Key(Share, 0.8, "FedALA: part of the images that shares are learned on"),
            "fedala-layers": Key(Count, 1, "FedALA: number of top layers with shares"),
        },
    ),
    "ifca": Method(
        "A model for each cluster of clients; a client trains the one that fits it best",
        "Ghosh et al. 2020, NeurIPS, algorithm 1, model averaging",
        client=ClientSpec(IFCAClient),
        server=ServerSpec(IFCA, parts=parts.ifca),
        exchange=Exchange(sends="nothing", also_sends="one of the clusters' models"),
        accuracy=CLIENT_MEAN,
        fixed={"weights": "uniform", "initial_model": ""},  # all models would start from one
        keys={"ifca-clusters": Key(Clusters, 4, "IFCA: number of clusters, each with a model")},
    ),
}
