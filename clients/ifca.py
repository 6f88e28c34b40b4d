"""IFCA's clients: of several received models they train the one that fits their images best."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from clients.arrays import Arrays
from clients.base import LocalClient
from clients.training.arrays import floating, load_arrays, to_arrays
from clients.training.evaluation import Score, predict
from clients.training.local_training import check_finite
from clients.update import Update

# the names in messages, as in strategies.ifca; neither package imports the other
CLUSTER, CHOICE = "cluster-", "ifca-choice"


class IFCAClient(LocalClient):
    """Chooses the model with the lowest cross-entropy on its training images; trains and sends it.

    The images are not augmented, and the first of equal models is taken. A client is tested with
    the model that it chooses after the round.
    Source: IFCA (Ghosh et al. 2020, NeurIPS), algorithm 1.
    """

    unfit_regularisers: ClassVar[Mapping[str, str]] = {
        "moon": "a client's previous model may be that of another cluster"
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.choice = 0  # the number of a model

    def prepare(self, server_round: int) -> None:
        """Choose the model to train."""
        self._choose(server_round)

    def finish(self, received: Arrays, update: Update, lr: float) -> None:
        """Send the model and its number; raises `LossDiverged` if it is not finite."""
        model = to_arrays(floating(self.model))
        check_finite(model, "the model", update.training.steps)
        update.uploads = {**model, CHOICE: np.array([self.choice])}

    def personalise(self, server_round: int, lr: float) -> None:
        """Choose the model to test."""
        self._choose(server_round)

    def scores(self) -> dict[str, float]:
        """Return the scores of the chosen model, and its number as "cluster"."""
        return {**super().scores(), "cluster": self.choice}

    def _choose(self, server_round: int) -> None:
        """Load the model with the lowest loss; one without a finite loss comes last."""
        numbers = range(sum(name.startswith(CLUSTER) for name in self.extras))
        losses = [self._loss(number, server_round) for number in numbers]
        self.choice = min(numbers, key=losses.__getitem__)
        self._load(self.choice)

    def _loss(self, number: int, server_round: int) -> float:
        self._load(number)
        score = Score()
        for _, logits, labels in predict(self.model, self.data.mixed(server_round)):
            score.add(logits, labels)
        return score.loss if math.isfinite(score.loss) else math.inf

    def _load(self, number: int) -> None:
        load_arrays(floating(self.model), self.extras[f"{CLUSTER}{number}"])
