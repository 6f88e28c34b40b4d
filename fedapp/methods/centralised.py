"""Rows of the method table for centralised training, the baseline of the federated methods.

One client has all images. A partition with one client is not enough, because the client's procedure
differs too: it keeps its momentum between rounds, which makes a run a plain training loop of
num-rounds x local-epochs epochs. As rows of the table, these methods can be part of a sweep over
federated methods; the sweep's keys for clients and partition do not apply to them.
"""

from typing import Any

from clients.centralised import CentralisedClient
from fedapp.methods.row import ClientSpec, Exchange, HeadSpec, Method

_ONE_CLIENT: dict[str, Any] = {
    "client": ClientSpec(CentralisedClient),
    "exchange": Exchange(keeps="momentum"),
    "fixed": {
        "partition": "iid",
        "partition_file": "",
        "num_clients": 1,
        "participation": 1.0,
        "stochastic_every": 0,
        "weights": "uniform",  # weight 1: the fixed-point sum of one model keeps the most bits
    },
    "defaults": {"local_epochs": 1},
}

CENTRALISED: dict[str, Method] = {
    "centralised": Method(
        "Centralised training of one model on all training images",
        "SGD with momentum; FedFN (Kim et al. 2023), table 12 of the appendix",
        **_ONE_CLIENT,
    ),
    "centralised+babu": Method(
        "Centralised training with a random frozen head (body training)",
        "Kim et al. 2023 (FedFN), centralised body training",
        head=HeadSpec("frozen-random"),
        **_ONE_CLIENT,
    ),
    "centralised+fn": Method(
        "Centralised training with feature normalisation",
        "Kim et al. 2023 (FedFN), centralised FN training",
        head=HeadSpec("normalised-linear", options={"bias": "fedfn-bias"}),
        **_ONE_CLIENT,
    ),
}
