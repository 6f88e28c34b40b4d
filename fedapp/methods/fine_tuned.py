"""Rows of the method table with a second stage: every client fine-tunes the final global model.

Row X-ft is derived from row X. The rounds of the two methods are equal bit for bit.
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
        Unsigned | Auto,
        "auto",
        "fine-tuning: epochs of every client; auto: the protocol's in methods X-ft, else 0",
    ),
    "finetune-lr": Key(Positive | Auto, "auto", "fine-tuning: learning rate; auto: the protocol's"),
    "finetune-protocol": Key(
        Literal["auto", "feddr+", "fedfn", "fedetf"],
        "auto",
        "fine-tuning: paper that auto epochs, rate and part follow; auto: the method's",
    ),
    "finetune-part": Key(
        Literal["auto", "body", "head", "all", "alternating"],
        "auto",
        "fine-tuning: trained part; alternating: all but the head's rows, then FedETF's turns; "
        "auto: the paper's choice, else all but a frozen head",
    ),
    "finetune-turns": Key(
        Count, 20, "fine-tuning part alternating: turns of 3 epochs head rows, 3 epochs bottleneck"
    ),
    "finetune-loss": Key(
        Literal["auto", "own", "base", "base+fd", "dr", "dr+"],
        "auto",
        "fine-tuning: loss; own: as in training; base: no regulariser; base+fd: base with FD; "
        "dr: dot-regression; dr+: dr with FD; auto: own",
    ),
}


def fine_tuned(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the row X-ft of every method X that the papers fine-tune, by name."""
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
