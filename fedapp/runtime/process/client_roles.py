"""Which clients of a test federation are slow in a round, and which are malicious.

Real federations have both. Here they are drawn from the run's seed, so that methods and rules are
compared on the same clients, with the same bits in a simulation and on real hosts. New clients, the
last ones, need no drawing: `RunConfig.training_clients` is the number of the others.
"""

from dataclasses import replace

import numpy as np

from clients.arrays import Arrays
from clients.attacks import ATTACKS, LABELS
from clients.base import LocalClient
from clients.training.arrays import total_distance
from clients.update import Update
from fedapp.config.run_config import RunConfig
from fedapp.core.rng import Stream, numpy_rng


def local_epochs(config: RunConfig, client: int, server_round: int) -> int:
    """Return how many epochs a client trains in a round: local-epochs, or a straggler's fewer.

    Source: Li et al. 2020 (FedProx), MLSys, section 5.2, where a share of each round's clients draw
    from 1 to E; Wang et al. 2020 (FedNova), NeurIPS, section 5, where all draw from 2 to 5.
    """
    most = int(config.local_epochs)
    if not config.straggler_share:
        return most
    rng = numpy_rng(config.seed, Stream.STRAGGLERS, server_round, client)
    slow = rng.random() < config.straggler_share
    return int(rng.integers(config.straggler_epochs, most + 1)) if slow else most


def slow_down(config: RunConfig, client: LocalClient, server_round: int) -> None:
    """Let a slow client train fewer epochs in this round; its tests keep all epochs."""
    epochs = local_epochs(config, client.client, server_round)
    if epochs < client.settings.epochs:
        client.settings = replace(client.settings, epochs=epochs)


def mean_epochs(config: RunConfig) -> float:
    """Return the expected number of epochs of a client in a round."""
    most, fewest = int(config.local_epochs), config.straggler_epochs
    return most - config.straggler_share * (most - fewest) / 2


def attackers(config: RunConfig) -> frozenset[int]:
    """Return the malicious clients, the same in all rounds."""
    rng = numpy_rng(config.seed, Stream.ATTACKERS)
    chosen = rng.choice(config.training_clients, config.attackers, replace=False)
    return frozenset(chosen.tolist())


def attack(
    config: RunConfig,
    malicious: frozenset[int],
    client: LocalClient,
    received: Arrays,
    update: Update,
    server_round: int,
) -> bool:
    """Replace the trained tensors in the update of a malicious client; buffers and groups stay.

    Returns False, with nothing replaced, for an honest client, and for one with wrong labels.
    """
    if config.attack == LABELS or client.client not in malicious:
        return False
    rng = numpy_rng(config.seed, Stream.ATTACK, server_round, client.client)
    change = ATTACKS[config.attack]
    for name in client.trained:
        step = update.shared[name] - received[name]
        sent = received[name] + np.float32(config.attack_scale) * change(step, rng)
        update.shared[name] = sent.astype(step.dtype)
    update.squared_distance = total_distance(received, update.shared, client.trained)
    return True
