"""Rows of the method table whose server applies a step length or momentum to the mean update."""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedapp.core.keys import Key, Positive
from fedapp.methods.row import HeadSpec, Method, ServerSpec
from strategies.fedavgm import FedAvgM
from strategies.fedexp import FedExP

_FEDEXP: dict[str, Any] = {
    "server": ServerSpec(
        FedExP,
        options={
            "epsilon": "fedexp-epsilon",
            "step": "fedexp-step",
            "evaluate": "fedexp-evaluate",
        },
    ),
    "keys": {
        "fedexp-epsilon": Key(Positive, 1e-3, "FedExP: epsilon in the step length"),
        "fedexp-step": Key(
            Literal["paper", "authors", "feddr+"],
            "paper",
            "FedExP: step length of its paper, of its authors' code, or of FedDr+'s code",
        ),
        "fedexp-evaluate": Key(
            Literal["average", "last"],
            "average",
            "FedExP: evaluate the average of the last two models, or the last model",
        ),
    },
}

SERVER: dict[str, Method] = {
    "fedexp": Method(
        "Server step along the mean update with an adaptive, extrapolated length",
        "Jhunjhunwala et al. 2023, ICLR, equation 5",
        **_FEDEXP,
    ),
    "fedavgm": Method(
        "Server momentum",
        "Hsu et al. 2019, arXiv 1909.06335",
        server=ServerSpec(FedAvgM, options={"beta": "fedavgm-beta"}),
        keys={
            "fedavgm-beta": Key(Annotated[float, Field(ge=0, lt=1)], 0.7, "server momentum"),
        },
    ),
    "fedexp+babu": Method(
        "FedExP with the head frozen",
        "Kim et al. 2023 (FedFN), table 2",
        head=HeadSpec("frozen-random"),
        **_FEDEXP,
    ),
    "fedexp+fn": Method(
        "FedExP with feature normalisation",
        "Kim et al. 2023 (FedFN), table 2",
        head=HeadSpec("normalised-linear", options={"bias": "fedfn-bias"}),
        **_FEDEXP,
    ),
}
