"""How samples are assigned to clients: the steps that splits share, and what a split is.

All of it works on labels and a seeded generator alone, so that a split can be printed, tested and
repeated without loading an image.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training and the test set, one of each per client (by client id)."""

    train: list[Indices]
    test: list[Indices]
    pooled: bool = False  # whether both index one pool of all samples
    notes: tuple[str, ...] = ()  # what the user should know about this draw

    def everyone_tests(self) -> Indices | None:
        """Return the samples of the global test set; None: the whole published test set.

        In a pool they are those that some client holds out, for all others are trained on.
        """
        return np.unique(np.concatenate(self.test)) if self.pooled else None

    def class_counts(self, train_labels: Indices, num_classes: int) -> Indices:
        """Count each client's training samples per class: int array [clients, classes]."""
        counts = [np.bincount(train_labels[part], minlength=num_classes) for part in self.train]
        return np.stack(counts).astype(np.int64)


def check_clients(train_labels: Indices, num_clients: int) -> None:
    """Raise UserError unless every client can get a sample."""
    if not 1 <= num_clients <= len(train_labels):
        raise UserError(
            f"num-clients must be between 1 and the {len(train_labels)} training samples, "
            f"but it is {num_clients}"
        )


def count_classes(train_labels: Indices, test_labels: Indices) -> int:
    """Return the number of classes C: the largest label and one."""
    return int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1


def assign_randomly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Cut the shuffled samples into parts whose sizes differ by one at most."""
    return np.array_split(rng.permutation(len(labels)), num_clients)


def assign_evenly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Assign the shuffled samples, sorted by class, one to each client in turn."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # Left-over samples go to the first seats; shuffled seats keep low ids from gaining by it.
    return [order[seat::num_clients] for seat in rng.permutation(num_clients)]


def assign_shards(
    labels: Indices, assignment: Indices, rng: np.random.Generator, which: str
) -> list[Indices]:
    """Hand out the shards of each class at random to the clients listed for it."""
    num_clients, shards_per_client = assignment.shape
    hands: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(assignment):
        holders = np.flatnonzero(assignment.ravel() == label) // shards_per_client
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < len(holders):
            raise UserError(
                f"class {label} has {len(members)} {which} samples, too few for the "
                f"{len(holders)} shards that num-clients x shards asks for"
            )
        pieces = np.array_split(members, len(holders))
        for holder, piece in zip(holders, rng.permutation(len(pieces)), strict=True):
            hands[holder].append(pieces[piece])
    return [np.concatenate(hand) for hand in hands]


def draw_counts(
    class_sizes: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance_cap: bool,
) -> Indices:
    """Draw how many samples of each class each client gets: int array [clients, classes]."""
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    total, held = int(class_sizes.sum()), np.zeros(num_clients, dtype=np.int64)
    for label, size in enumerate(class_sizes):
        takers = np.flatnonzero(held * num_clients < total) if balance_cap else np.arange(len(held))
        if size == 0:
            continue
        # Zeroing the capped clients' proportions and renormalising, as the released code does, is
        # the same as drawing from the Dirichlet distribution over the others, without its 0 / 0.
        shares = rng.dirichlet(np.full(len(takers), alpha))
        cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
        counts[takers, label] = np.diff(cuts, prepend=0, append=size)
        held += counts[:, label]
    return counts


def assign_counts(labels: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Assign random samples of each class, as many as `counts` [clients, classes] says."""
    hands: list[list[Indices]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(labels == label))
        *pieces, _undealt = np.split(members, np.cumsum(counts[:, label]))
        for hand, piece in zip(hands, pieces, strict=True):
            hand.append(piece)
    return [np.concatenate(hand) for hand in hands]


def matching_test_parts(
    labels: Indices, counts: Indices, rng: np.random.Generator
) -> list[Indices]:
    """Draw for each client test samples in its training proportions, size in proportion too."""
    members = [np.flatnonzero(labels == label) for label in range(counts.shape[1])]
    available = np.array([len(indices) for indices in members])
    scale = len(labels) / counts.sum()
    parts = []
    for row in counts:
        quotas = quotas_by_largest_remainder(row, max(1, round(scale * row.sum())), available)
        picks = [rng.choice(m, q, replace=False) for m, q in zip(members, quotas, strict=True)]
        parts.append(np.concatenate(picks).astype(np.int64))
    return parts


def quotas_by_largest_remainder(counts: Indices, total: int, available: Indices) -> Indices:
    """Divide `total` over the classes by largest remainder in proportion to `counts` [C].

    A class cannot give more than `available` [C]; what it lacks is divided over the client's other
    classes. The quotas sum to `total` unless the client's classes hold fewer samples than that.
    """
    quotas = np.zeros_like(counts)
    weights = np.where(available > 0, counts, 0)
    while (missing := total - quotas.sum()) > 0 and weights.any():
        exact = missing * weights / weights.sum()
        share = np.floor(exact).astype(np.int64)
        largest = np.argsort(share - exact, kind="stable")[: missing - share.sum()]
        share[largest] += 1
        quotas = np.minimum(quotas + share, available)
        weights = np.where(quotas < available, weights, 0)
    return quotas
