"""FedProto's server: the mean of each class's prototypes over the clients that have it."""

from typing import Any

import numpy as np

from strategies.prototypes.rounds import PrototypeRounds
from strategies.prototypes.uploads import Table, Upload, class_means


class FedProto(PrototypeRounds):
    """P^c = sum_k n_k^c p_k^c / sum_k n_k^c, or the plain mean (Tan et al., AAAI 2022, eq. 6).

    A class without uploads in a round has no prototype afterwards, unless `memory` keeps the last.
    """

    def __init__(self, *args: Any, weighting: str, memory: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.counted, self.memory = weighting == "count", memory

    def update(self, uploads: list[Upload]) -> Table:
        """Return the means of this round."""
        means = class_means(uploads, self.counted)
        if not self.memory:
            return means
        rows = dict(zip(self.table.classes.tolist(), self.table.rows, strict=True))
        rows |= dict(zip(means.classes.tolist(), means.rows, strict=True))
        known = sorted(rows)
        return Table(np.stack([rows[c] for c in known]), np.array(known, np.int64))
