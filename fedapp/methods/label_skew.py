"""Rows of the method table for clients that have few classes each: losses that allow for that.

They change what a client's cross-entropy does to classes that it lacks (FedLC, FedRS), or keep its
features from collapsing to few directions (FedDecorr).
"""

from fedapp.core.keys import Key, Share, Weight
from fedapp.methods.row import ADD, LossSpec, Method

LABEL_SKEW: dict[str, Method] = {
    "fedlc": Method(
        "Logits calibrated by the client's class counts",
        "Zhang J. et al. 2022, ICML; the calibrated loss",
        loss=LossSpec("calibrated-ce", options={"margin": "fedlc-tau"}),
        keys={
            "fedlc-tau": Key(Weight, 1.0, "FedLC: margin tau; tau n^(-1/4) is subtracted"),
        },
    ),
    "fedrs": Method(
        "Softmax with smaller logits of the classes that a client lacks",
        "Li X. and Zhan 2021, KDD; the restricted softmax",
        loss=LossSpec("restricted-ce", options={"absent": "fedrs-alpha"}),
        keys={
            "fedrs-alpha": Key(Share, 0.5, "FedRS: factor of the logits of classes that it lacks"),
        },
    ),
    "feddecorr": Method(
        "Decorrelated features",
        "Shi et al. 2023, ICLR",
        loss=LossSpec(regulariser="decorr", combine=ADD),
        defaults={"beta": 0.1},
        keys={
            "feddecorr-authors": Key(
                bool, True, "FedDecorr: scale of the term as in its authors' code, or as printed"
            ),
        },
    ),
}
