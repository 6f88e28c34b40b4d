"""Rounds in which clients upload prototypes and receive a table of global ones, but no model.

The methods differ in how the server computes the table; each is one class in a file of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from strategies.aggregate import Arrays
from strategies.prototypes.training import PrototypeMaker, ServerTraining, train_on_pairs
from strategies.prototypes.uploads import (
    Table,
    TableShape,
    Upload,
    pairs,
    prototype_similarity,
    read_upload,
)
from strategies.rounds.named_arrays import load_module, module_arrays, strip_prefix
from strategies.rounds.report import check_finite
from strategies.rounds.uploads import UploadRounds
from strategies.threads import one_thread

EXTRA = "prototypes"
_TABLE = "table."
_MAKER = "maker."


class PrototypeRounds(UploadRounds[Upload]):
    """Checks uploads, refuses invalid ones by client, and broadcasts the table from `update`."""

    counted = False  # whether clients also upload their numbers of images
    makes = "prototypes"  # the name of the server's result, for error messages

    def __init__(self, *args: Any, shape: TableShape, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shape = shape
        self.table = Table.empty(shape.width)

    def update(self, uploads: list[Upload]) -> Table:
        """Return the next table from at least one prototype; `uploads` are ordered by client."""
        raise NotImplementedError

    def extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send the table once it has a class."""
        return {EXTRA: self.table.arrays()} if len(self.table.classes) else {}

    def evaluation_extras(self, clients: Sequence[int]) -> dict[str, Arrays]:
        """Send the same, because an evaluation may compare images with the prototypes."""
        return self.extras(clients)

    def read(self, client: int, arrays: Arrays) -> Upload:
        """Check one client's prototypes, and that it counts no more images than it has seen."""
        limit = self.shape.passes * self.federation.examples[client] if self.counted else None
        return read_upload(arrays, self.shape, limit)

    def end_round(self, received: Arrays) -> Arrays:
        """Compute the next table; without any prototype keep the old one.

        Raises `RoundDiverged` if the server's training gave non-finite numbers.
        """
        uploads = self.uploads()
        if any(len(upload.classes) for upload in uploads):
            self.table = self.update(uploads)
            check_finite(self.state(), self.server_round, self.makes, "lower proto-server-lr")
        return received

    def round_metrics(self) -> dict[str, float]:
        """Return the similarity of the global prototypes of two classes: mean and largest |cos|."""
        return {**super().round_metrics(), **prototype_similarity(self.table.rows)}

    def state(self) -> Arrays:
        """Return the table."""
        return {_TABLE + name: array for name, array in self.table.arrays().items()}

    def load_state(self, state: Arrays) -> None:
        """Restore the table."""
        self.table = Table.from_arrays(strip_prefix(state, _TABLE))


class TrainedPrototypes(PrototypeRounds):
    """The server trains a module that computes the prototypes of all classes from trained vectors.

    FedTGP (Zhang et al., AAAI 2024), FedORGP (Guo et al., 2025) and FedDOR differ in the loss.
    """

    trains = True

    def __init__(
        self, *args: Any, maker: PrototypeMaker, training: ServerTraining, epochs: int | str,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Prepare; `epochs` over a round's uploads, or "auto", as in `train_on_pairs`."""
        super().__init__(*args, **kwargs)
        self.maker, self.training, self.epochs = maker, training, epochs
        self.epochs_taken = 0

    def loss(self, prototypes: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the server's loss on a batch of uploaded prototypes [B, K] and classes [B]."""
        raise NotImplementedError

    def made(self) -> np.ndarray:
        """Return the module's prototypes, as they are sent, [C, K]."""
        with torch.no_grad(), one_thread():
            return self.maker().numpy()

    def update(self, uploads: list[Upload]) -> Table:
        """Train on this round's uploads and compute the prototypes of all classes."""
        self.epochs_taken = train_on_pairs(
            self.maker, self.loss, *pairs(uploads), self.training, self.server_round, self.epochs
        )
        return Table.full(self.made())

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Reset the uploads and the number of epochs of the previous round."""
        super().begin_round(received, total_weight, cohort)
        self.epochs_taken = 0

    def round_metrics(self) -> dict[str, float]:
        """Return the prototypes' similarity and the number of epochs that the server trained."""
        return {**super().round_metrics(), "server_epochs": float(self.epochs_taken)}

    def state(self) -> Arrays:
        """Return the table and the module."""
        return {**super().state(), **module_arrays(self.maker, _MAKER)}

    def load_state(self, state: Arrays) -> None:
        """Restore the table and the module."""
        super().load_state(state)
        load_module(self.maker, state, _MAKER)
