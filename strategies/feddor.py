"""FedDOR's server: trains a prototype generator to fit the uploads and to be orthogonal."""

from typing import Any

import numpy as np
import torch

from strategies.prototypes.rounds import PrototypeRounds, TrainedPrototypes
from strategies.prototypes.training import intra_inter
from strategies.prototypes.uploads import Table, Upload, class_means, normalised


class FedDOR(TrainedPrototypes):
    """SGD on L_intra + w L_inter over the uploads, then P = the rows of G(E), normalised.

    The orthogonal rows that initialise the clients' classifiers usually also initialise E, and they
    are the prototypes of the first round. Source: FedDOR, equations 3 and 4.
    """

    def __init__(
        self,
        *args: Any,
        inter_weight: float,
        rows: np.ndarray | None = None,
        first_target: str = "none",
        **kwargs: Any,
    ) -> None:
        """Prepare; `first_target` of round 1: `rows` ("oi"), G(E) ("generator") or "none"."""
        super().__init__(*args, **kwargs)
        self.inter_weight = inter_weight
        if first_target == "oi" and rows is not None:
            self.table = Table.full(rows)
        elif first_target == "generator":
            self.table = Table.full(self.made())

    def loss(self, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return L_intra + w L_inter."""
        intra, inter = intra_inter(prototypes, labels, self.maker())
        return intra + self.inter_weight * inter

    def made(self) -> np.ndarray:
        """Return G(E) with rows of length one."""
        return normalised(super().made())


class FedDORWithoutGenerator(PrototypeRounds):
    """The ablation without dual regularisation: normalised means, weighted by counts.

    The table starts at the orthogonal rows; a class without uploads keeps its row.
    """

    counted = True

    def __init__(self, *args: Any, first: np.ndarray, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = Table.full(first)

    def update(self, uploads: list[Upload]) -> Table:
        """Replace the rows of the uploaded classes."""
        means = class_means(uploads, counted=True)
        rows = self.table.rows.copy()
        rows[means.classes] = normalised(means.rows)
        return Table.full(rows)
