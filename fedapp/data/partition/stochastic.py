"""Clients whose data change during the run: one class of each is gone for a block of rounds.

FedDr+ (TMLR 2025, table 16) takes a class from every client every ten rounds. Taking them for good
would leave a client of ten classes nothing after a hundred rounds, so a class returns when the next
one goes. Which one is gone is a function of the seed, the client and the block alone.
"""

import numpy as np

from fedapp.core.rng import Stream, numpy_rng
from fedapp.data.partition.assignment import Indices


def dropped_class(
    labels: Indices, seed: int, client: int, server_round: int, every: int, first_round: int = 1
) -> int | None:
    """Return the class that a client lacks in a round, drawn evenly from those it has.

    Args:
        labels: of all the client's training samples.
        seed: of the run.
        client: its id.
        server_round: counted from 1.
        every: rounds in a block; 0: nothing is ever dropped.
        first_round: the first round without a class.

    Returns:
        The label; None when nothing is dropped, as for a client of one class.
    """
    observed = np.unique(labels)
    if not every or server_round < first_round or len(observed) < 2:
        return None
    block = (server_round - 1) // every
    return int(numpy_rng(seed, Stream.STOCHASTIC, block, client).choice(observed))
