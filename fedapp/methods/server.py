"""Rows of the method table whose server takes its own step along the mean update.

The step has a length (FedExP), momentum (FedAvgM) or both for each parameter (FedOpt).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from fedapp.core.keys import Key, Positive
from fedapp.methods.row import HeadSpec, Method, ServerSpec
from strategies.fedavgm import FedAvgM
from strategies.fedexp import FedExP
from strategies.fedopt import FedOpt, SecondMoment, adagrad, adam, yogi

Decay = Annotated[float, Field(ge=0, lt=1)]

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

_FEDOPT_KEYS: dict[str, Key] = {
    "fedopt-server-lr": Key(Positive, 0.01, "FedAdagrad, FedYogi, FedAdam: server's learning rate"),
    "fedopt-tau": Key(Positive, 1e-3, "the same: tau, added to the root of the second moment"),
}
_FEDOPT_DECAYS: dict[str, Key] = {
    "fedopt-beta1": Key(Decay, 0.9, "FedYogi, FedAdam: decay of the mean update"),
    "fedopt-beta2": Key(Decay, 0.99, "FedYogi, FedAdam: decay of its square"),
}


def _fedopt(title: str, second_moment: SecondMoment, decays: dict[str, Key]) -> Method:
    """Return the row of a method of Reddi et al.; FedAdagrad has no decays."""
    keys = _FEDOPT_KEYS | decays
    return Method(
        title,
        "Reddi et al. 2021, ICLR, algorithm 2",
        server=ServerSpec(
            FedOpt,
            options={key.removeprefix("fedopt-").replace("-", "_"): key for key in keys},
            parts=lambda setup: {"second_moment": second_moment},
        ),
        keys=keys,
    )


SERVER: dict[str, Method] = {
    "fedexp": Method(
        "Server step along the mean update with an adaptive, extrapolated length",
        "Jhunjhunwala et al. 2023, ICLR, equation 5",
        **_FEDEXP,
    ),
    "fedavgm": Method(
        "Server momentum",
        "Hsu et al. 2019, arXiv 1909.06335",
        server=ServerSpec(
            FedAvgM, options={"beta": "fedavgm-beta", "nesterov": "fedavgm-nesterov"}
        ),
        keys={
            "fedavgm-beta": Key(Decay, 0.7, "server momentum"),
            "fedavgm-nesterov": Key(bool, False, "FedAvgM: Nesterov's momentum"),
        },
    ),
    "fedadagrad": _fedopt("Server step divided by the root of all squared updates", adagrad, {}),
    "fedyogi": _fedopt("FedAdam with a slower second moment", yogi, _FEDOPT_DECAYS),
    "fedadam": _fedopt("Adam on the server", adam, _FEDOPT_DECAYS),
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
