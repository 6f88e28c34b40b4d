"""Rows of the method table with a second stage: every client fine-tunes the final global model.

Each is made from the row of its global method, whose rounds it shares to the last bit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from fedapp.core.keys import Auto, Count, Key, Positive, Unsigned
from fedapp.methods.row import CLIENT_MEAN, Method

_PAPER = {
    "fedavg": "FedDr+ table 5; FedFN appendix table 9",
    "fedbabu": "Oh et al. 2022, ICLR, section 5; FedDr+ table 5; FedFN appendix table 9",
    "spherefed": "FedDr+ table 5; FedFN appendix table 9",
    "spherefed-ce": "FedFN appendix table 9",
    "fedetf": "FedDr+ table 5",
    "fedgela": "FedDr+ table 5",
    "fedfn": "FedFN appendix table 9",
    "dr": "FedDr+ table 14",
    "feddr+": "FedDr+ tables 5 and 14, algorithm 1",
}

FINE_TUNING_KEYS = {
    "finetune-epochs": Key(
        Unsigned | Auto, "auto", "of every client on the final model; auto: for methods X-ft only"
    ),
    "finetune-lr": Key(Positive | Auto, "auto", "of fine-tuning; auto: the protocol's"),
    "finetune-protocol": Key(
        Literal["auto", "feddr+", "fedfn", "fedetf"],
        "auto",
        "paper whose epochs and rates are auto; auto: the method's",
    ),
    "finetune-part": Key(
        Literal["auto", "body", "head", "all", "alternating"],
        "auto",
        "of the model; auto: all but a frozen head; alternating: FedETF's turns too",
    ),
    "finetune-turns": Key(
        Count, 20, "alternating: turns of 3 epochs of the head's rows, 3 of the bottleneck"
    ),
    "finetune-loss": Key(
        Literal["auto", "own", "base", "base+fd", "dr", "dr+"],
        "auto",
        "own: as in training; base: no regulariser; base+fd: with FD; auto: own",
    ),
}


def fine_tuned(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the row X-ft of every method X that the papers fine-tune."""
    return {
        f"{name}-ft": replace(
            methods[name],
            title=f"{name}, then every client fine-tunes the final model",
            source=source,
            accuracy=CLIENT_MEAN,
            fine_tuning=replace(methods[name].fine_tuning, evaluated=True),
            settings_of=name,
        )
        for name, source in _PAPER.items()
    }
