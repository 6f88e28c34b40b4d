"""Rows of the method table with a second stage: every client fine-tunes the final global model.

Row X-ft is derived from row X. The rounds of the two methods are equal bit for bit. The papers'
protocols of fine-tuning are here, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fedapp.core.keys import Auto, Count, Key, Positive, Unsigned
from fedapp.methods.row import CLIENT_MEAN, FineTuning, Method

ALTERNATING = "alternating"  # all but the head's fixed rows, then rows and bottleneck in turns


@dataclass(frozen=True)
class Protocol:
    """Epochs, learning rate and part of a paper's fine-tuning."""

    epochs: Callable[[int], int]  # from the run's number of local epochs
    rate: Callable[[float, FineTuning], float]  # from the learning rate of round 1
    part: str = ""  # trained part; empty: the method's


PROTOCOLS = {
    # algorithm 1: the epochs of a round, at the learning rate of the last round
    "feddr+": Protocol(lambda epochs: epochs, lambda lr, _: 0.01 * lr),
    # appendix tables 9 and 10: five epochs, at the best of 1, 0.1 and 0.01 times round 1's rate
    "fedfn": Protocol(lambda _: 5, lambda lr, stage: stage.factor * lr),
    # Li Z. et al. 2023, ICCV, the authors' code: a local update at the rounds' rate, then turns
    "fedetf": Protocol(lambda epochs: epochs, lambda lr, _: lr, ALTERNATING),
}

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


def fine_tuned_rows(methods: Mapping[str, Method]) -> dict[str, Method]:
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
