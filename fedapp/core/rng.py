"""The source of every random number of a run, but for secret ones: masks, and privacy's noise.

A random number depends only on the seed, its purpose (the stream), the round and the client. It
does not depend on the process, the worker or the node that draws it. Therefore two workers, ten
nodes or a resumed run give the same model, bit for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from random import SystemRandom

import numpy as np
import torch


class Stream(IntEnum):
    """The purpose of a random number; the values never change, because seeds contain them."""

    MODEL = 1
    HEAD = 2
    PARTITION = 3
    COHORT = 4
    BATCHES = 5
    EVALUATION = 6
    STOCHASTIC = 21
    ANALYSIS = 22
    LOCAL = 31  # a client's dropout and noise
    SERVER = 32  # the server's own training
    ARCHITECTURE = 33  # initial weights of one of several architectures
    ROUNDING = 34  # of a client's update in few bits
    STRAGGLERS = 35  # which clients train fewer epochs in a round
    ATTACKERS = 36  # which clients are malicious
    ATTACK = 37  # the noise that a malicious client sends
    LONG_TAIL = 38  # which training images a long-tailed data set keeps
    FEATURE_SKEW = 39  # the noise on a client's images
    TUNING = 41  # batches of fine-tuning


def numpy_rng(
    seed: int, stream: Stream, server_round: int = 0, client: int = 0
) -> np.random.Generator:
    """Return the NumPy generator of one stream, round and client of a run."""
    return np.random.default_rng(np.random.SeedSequence([seed, stream, server_round, client]))


def torch_seed(seed: int, stream: Stream, server_round: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for torch, drawn from the same tree of seeds as `numpy_rng`."""
    words = np.random.SeedSequence([seed, stream, server_round, client]).generate_state(
        1, np.uint64
    )
    return int(words[0] >> 1)


def torch_rng(seed: int, stream: Stream, server_round: int = 0, client: int = 0) -> torch.Generator:
    """Return a CPU generator of torch for one stream, round and client of a run."""
    return torch.Generator().manual_seed(torch_seed(seed, stream, server_round, client))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block and restore it afterwards.

    The generators of GPUs do not change.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def cohort_size(num_clients: int, participation: float) -> int:
    """Return how many clients a round samples: max(1, ceil(participation * num_clients)).

    A rounding error of the product, as in 0.07 * 100 = 7.000000000000001, does not add a client.
    """
    return max(1, int(np.ceil(participation * num_clients - 1e-9)))


def sample_secretly(num_clients: int, participation: float) -> list[int]:
    """Draw a cohort as `sample_clients`, but from the operating system: nobody can repeat it."""
    size = cohort_size(num_clients, participation)
    return sorted(SystemRandom().sample(range(num_clients), size))


def sample_clients(
    seed: int, server_round: int, num_clients: int, participation: float
) -> list[int]:
    """Draw the cohort of a round: `cohort_size` ids, ascending.

    The cohort depends on the seed and the round only, so every method sees the same clients
    (FedNTD's reference code does the same).
    """
    size = cohort_size(num_clients, participation)
    rng = numpy_rng(seed, Stream.COHORT, server_round)
    return sorted(int(client) for client in rng.choice(num_clients, size=size, replace=False))
