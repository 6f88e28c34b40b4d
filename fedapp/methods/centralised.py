"""Rows of the method table for training in one place: what federated methods are compared with.

They are rows, and no partition of one client, because the client's procedure differs too: it keeps
its momentum between rounds, so that a run is a plain training loop of num-rounds x local-epochs
epochs. Being rows they can also stand beside federated methods in a sweep, whose keys of clients
and partition do not apply to them.
"""

from typing import Any

from clients.centralised import CentralisedClient
from fedapp.methods.row import ClientSpec, Exchange, HeadSpec, Method

_ONE_PLACE: dict[str, Any] = {
    "client": ClientSpec(CentralisedClient),
    "exchange": Exchange(keeps="momentum"),
    "fixed": {
        "partition": "iid",
        "num_clients": 1,
        "participation": 1.0,
        "stochastic_every": 0,
        "weights": "uniform",  # of one model: its sum then keeps the most bits
    },
    "defaults": {"local_epochs": 1},
}

CENTRALISED: dict[str, Method] = {
    "centralised": Method(
        "One model trained on all training images in one place",
        "SGD with momentum; FedFN (Kim et al. 2023), table 12 of the appendix",
        **_ONE_PLACE,
    ),
    "centralised+babu": Method(
        "The same with the head random and frozen: body training",
        "Kim et al. 2023 (FedFN), centralised body training",
        head=HeadSpec("frozen-random"),
        **_ONE_PLACE,
    ),
    "centralised+fn": Method(
        "The same with feature normalisation",
        "Kim et al. 2023 (FedFN), centralised FN training",
        head=HeadSpec("normalised-linear", options={"bias": "fedfn-bias"}),
        **_ONE_PLACE,
    ),
}
