"""Clients whose data change during the run: each lacks one class for a block of rounds.

FedDr+ (TMLR 2025, table 16) removes a class from every client every ten rounds. Permanent removal
would leave a client of ten classes without data after a hundred rounds, so here a class returns
when the next one is drawn, which may be the same. It depends only on the seed, the client and the
block.
"""

import numpy as np

from fedapp.core.rng import Stream, numpy_rng
from fedapp.data.partition.assignment import Indices


def dropped_class(
    labels: Indices, seed: int, client: int, server_round: int, every: int, first_round: int = 1
) -> int | None:
    """Return the class that a client lacks in a round, drawn uniformly from its classes.

    Args:
        labels: of all the client's training samples.
        seed: of the run.
        client: its id.
        server_round: counted from 1.
        every: rounds per block; 0: no class is ever dropped.
        first_round: the first round without a class.

    Returns:
        The label; None if no class is dropped, as for a client with one class.
    """
    observed = np.unique(labels)
    if not every or server_round < first_round or len(observed) < 2:
        return None
    block = (server_round - 1) // every
    return int(numpy_rng(seed, Stream.STOCHASTIC, block, client).choice(observed))
