"""Rows of the method table with a second stage: every client fine-tunes the final global model.

Each is made from the row of its global method, whose rounds it shares to the last bit.
"""

from collections.abc import Mapping
from dataclasses import replace

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


def fine_tuned(methods: Mapping[str, Method]) -> dict[str, Method]:
    """Return the row X-ft of every method X that the papers fine-tune."""
    return {
        f"{name}-ft": replace(
            methods[name],
            title=f"{name}, then every client fine-tunes the final model",
            source=source,
            accuracy=CLIENT_MEAN,
            fine_tuned=True,
            settings_of=name,
        )
        for name, source in _PAPER.items()
    }
