"""The assignment of samples to clients: the type of a partition and steps that splits share.

All functions need only labels and a seeded generator, so that a split can be printed, tested and
repeated without loading an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training and the test set, one of each per client, by client id."""

    train: list[Indices]
    test: list[Indices]
    pooled: bool = False  # whether both index one pool of all samples
    notes: tuple[str, ...] = ()  # remarks for the user about this draw
    source: str = ""  # name and hash of the file that lists it, if any
    tests: Indices | None = None  # the global test set, if it is that of neither pool nor data set

    def global_test_set(self) -> Indices | None:
        """Return the samples of the global test set; None means the whole published test set.

        In a pool the global test set is the union of the clients' test parts, because all other
        samples are training samples.
        """
        if self.tests is not None:
            return self.tests
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
    """Return the number of classes C: the largest label plus one."""
    return int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1


def class_text(label: int, names: Sequence[str]) -> str:
    """Name a class for the user: by its name, or by its label if the names are not known."""
    return f"class '{names[label]}'" if names else f"class {label} (counted from 0)"


def assign_randomly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Cut the shuffled samples into parts whose sizes differ by one at most."""
    return np.array_split(rng.permutation(len(labels)), num_clients)


def assign_evenly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Assign the shuffled samples, sorted by class, one to each client in turn."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # The first positions get the left-over samples; shuffled positions avoid a bias to low ids.
    return [order[position::num_clients] for position in rng.permutation(num_clients)]


def assign_shards(
    labels: Indices, assignment: Indices, rng: np.random.Generator, which: str,
    names: Sequence[str] = (),
) -> list[Indices]:  # fmt: skip
    """Assign the shards of each class at random to the clients that `assignment` lists for it.

    An error says that the samples are of the set `which`, and the class's name, if `names` has it.
    """
    num_clients, shards_per_client = assignment.shape
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(assignment):
        clients = np.flatnonzero(assignment.ravel() == label) // shards_per_client
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < len(clients):
            classes = assignment.size // len(clients)
            raise UserError(
                f"{class_text(label, names)} has {len(members)} {which} samples, too "
                f"few for {len(clients)} shards: {num_clients} clients x {shards_per_client} shards"
                f" / {classes} classes; lower num-clients or shards, or choose partition='iid'"
            )
        pieces = np.array_split(members, len(clients))
        for client, piece in zip(clients, rng.permutation(len(pieces)), strict=True):
            parts[client].append(pieces[piece])
    return [np.concatenate(part) for part in parts]


def draw_counts(
    class_sizes: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance_cap: bool,
) -> Indices:
    """Draw how many samples of each class each client gets: int array [clients, classes]."""
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    total, sizes = int(class_sizes.sum()), np.zeros(num_clients, dtype=np.int64)
    for label, size in enumerate(class_sizes):
        clients = (
            np.flatnonzero(sizes * num_clients < total) if balance_cap else np.arange(len(sizes))
        )
        if size == 0:
            continue
        # The released code sets the capped clients' proportions to zero and renormalises. A draw
        # from the Dirichlet distribution over the others has the same distribution and no 0 / 0.
        shares = rng.dirichlet(np.full(len(clients), alpha))
        cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
        counts[clients, label] = np.diff(cuts, prepend=0, append=size)
        sizes += counts[:, label]
    return counts


def assign_counts(labels: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Assign random samples of each class, `counts` [clients, classes] of them."""
    parts: list[list[Indices]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(labels == label))
        *pieces, _rest = np.split(members, np.cumsum(counts[:, label]))
        for part, piece in zip(parts, pieces, strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def matching_test_parts(
    labels: Indices, counts: Indices, rng: np.random.Generator
) -> list[Indices]:
    """Draw for each client test samples with its class proportions and relative size."""
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

    A class gives at most `available` [C] samples; the rest is divided over the client's other
    classes. The quotas sum to `total` unless the client's classes have fewer samples.
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
