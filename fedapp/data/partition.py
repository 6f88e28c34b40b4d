"""Who holds what: splits of a labelled data set over the clients of a federation.

Every published table states one of three splits (IID, shards, LDA), and small differences between
implementations (rounding, caps, what the test parts look like) move the results by points. They are
therefore pure functions of the labels and a seeded generator, so that a split can be printed,
tested and repeated without loading a single image.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedapp.errors import UserError

Indices = NDArray[np.int64]
# On CIFAR-10 with 100 clients and alpha = 0.05, a published setting, 1 draw in 5000 is accepted.
MAX_DRAWS = 50_000


@dataclass(frozen=True)
class Partition:
    """Index arrays into the training and the test set, one of each per client (by client id)."""

    train: list[Indices]
    test: list[Indices]

    def class_counts(self, train_labels: Indices, num_classes: int) -> Indices:
        """Count each client's training samples per class: int array [clients, classes]."""
        counts = [np.bincount(train_labels[part], minlength=num_classes) for part in self.train]
        return np.stack(counts).astype(np.int64)


def iid(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    rng: np.random.Generator,
    stratified: bool = False,
) -> Partition:
    """Split both sets into equal random parts, sizes differing by one sample at most.

    With `stratified` the counts of each class differ by one at most between clients too. Test parts
    are empty for some clients when there are more clients than test samples.

    Raises:
        UserError: fewer training samples than clients.
    """
    _check_clients(train_labels, num_clients)
    deal = _deal_evenly if stratified else _deal_randomly
    return Partition(deal(train_labels, num_clients, rng), deal(test_labels, num_clients, rng))


def shards(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    shards_per_client: int,
    rng: np.random.Generator,
) -> Partition:
    """Give each client `shards_per_client` one-class shards, hence at most that many classes.

    Each class is cut into num_clients * shards_per_client / classes shards of equal size (left-over
    samples go one each to the first shards). The same client-by-class assignment serves the test
    set, so a client meets the same classes, in the same proportions, in both.

    Raises:
        UserError: the number of shards per class is not an integer, or a class is too small.
    """
    _check_clients(train_labels, num_clients)
    classes = _num_classes(train_labels, test_labels)
    total = num_clients * shards_per_client
    if shards_per_client < 1 or total % classes:
        raise UserError(
            f"num-clients x shards must be a positive multiple of the {classes} classes, "
            f"but {num_clients} x {shards_per_client} = {total}"
        )
    listed = np.repeat(np.arange(classes), total // classes)
    assignment = rng.permutation(listed).reshape(num_clients, shards_per_client)
    return Partition(
        _deal_shards(train_labels, assignment, rng, "training"),
        _deal_shards(test_labels, assignment, rng, "test"),
    )


def lda(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance_cap: bool = True,
    min_size: int = 10,
) -> Partition:
    """Split each class by proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    With `balance_cap` a client that already holds an average share gets nothing of the classes that
    follow (as the released code of MOON, FedNTD and others does). The draw is repeated until every
    client has `min_size` samples, or half an average share where that is less. A client's test part
    has the class proportions of its training part; the test parts of two clients may overlap.

    Raises:
        UserError: alpha is not positive, or no draw gave every client enough samples.
    """
    _check_clients(train_labels, num_clients)
    if not alpha > 0 or not np.isfinite(alpha):
        raise UserError(f"alpha must be a positive number, but it is {alpha}")
    classes = _num_classes(train_labels, test_labels)
    class_sizes = np.bincount(train_labels, minlength=classes)
    least = min(min_size, max(1, len(train_labels) // (2 * num_clients)))
    for _ in range(MAX_DRAWS):
        counts = _draw_counts(class_sizes, num_clients, alpha, rng, balance_cap)
        if counts.sum(axis=1).min() >= least:
            train = _deal_counts(train_labels, counts, rng)
            return Partition(train, _matching_test_parts(test_labels, counts, rng))
    raise UserError(
        f"no LDA split with alpha = {alpha} gives each of {num_clients} clients {least} or more "
        f"samples ({MAX_DRAWS} draws tried); raise alpha or lower num-clients"
    )


@dataclass(frozen=True)
class PartitionKind:
    """One row of the table of splits: what it is, in a line, and how to draw it."""

    description: str
    draw: Callable[[Indices, Indices, int, int, float, np.random.Generator], Partition]


PARTITIONS: dict[str, PartitionKind] = {
    "iid": PartitionKind(
        "equal random parts", lambda train, test, n, s, a, rng: iid(train, test, n, rng)
    ),
    "stratified": PartitionKind(
        "equal random parts with every class equally often",
        lambda train, test, n, s, a, rng: iid(train, test, n, rng, stratified=True),
    ),
    "shards": PartitionKind(
        "`shards` one-class shards per client",
        lambda train, test, n, s, a, rng: shards(train, test, n, s, rng),
    ),
    "lda": PartitionKind(
        "class proportions from a Dirichlet distribution with concentration `alpha`",
        lambda train, test, n, s, a, rng: lda(train, test, n, a, rng),
    ),
}


def make_partition(
    kind: str,
    train_labels: Indices,
    test_labels: Indices,
    *,
    num_clients: int,
    shards: int,
    alpha: float,
    seed: int | np.random.SeedSequence | np.random.Generator,
) -> Partition:
    """Draw the split named `kind`; the same arguments give the same split on every machine.

    Raises:
        UserError: unknown kind, or a split that these labels do not allow.
    """
    if kind not in PARTITIONS:
        raise UserError(f"unknown partition '{kind}'; choose one of {', '.join(PARTITIONS)}")
    rng = np.random.default_rng(seed)
    return PARTITIONS[kind].draw(train_labels, test_labels, num_clients, shards, alpha, rng)


def _check_clients(train_labels: Indices, num_clients: int) -> None:
    if not 1 <= num_clients <= len(train_labels):
        raise UserError(
            f"num-clients must be between 1 and the {len(train_labels)} training samples, "
            f"but it is {num_clients}"
        )


def _num_classes(train_labels: Indices, test_labels: Indices) -> int:
    return int(max(train_labels.max(initial=0), test_labels.max(initial=0))) + 1


def _deal_randomly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    return np.array_split(rng.permutation(len(labels)), num_clients)


def _deal_evenly(labels: Indices, num_clients: int, rng: np.random.Generator) -> list[Indices]:
    """Deal the shuffled samples, sorted by class, like cards: one to each client in turn."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # Left-over cards go to the first seats; shuffled seats keep low client ids from gaining by it.
    return [order[seat::num_clients] for seat in rng.permutation(num_clients)]


def _deal_shards(
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


def _draw_counts(
    class_sizes: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance_cap: bool,
) -> Indices:
    """Draw how many samples of each class each client gets: int array [clients, classes]."""
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    total = int(class_sizes.sum())
    for label, size in enumerate(class_sizes):
        held = counts.sum(axis=1)
        takers = np.flatnonzero(held * num_clients < total) if balance_cap else np.arange(len(held))
        if size == 0:
            continue
        # Zeroing the capped clients' proportions and renormalising, as the released code does, is
        # the same as drawing from the Dirichlet distribution over the others, without its 0 / 0.
        shares = rng.dirichlet(np.full(len(takers), alpha))
        cuts = (np.cumsum(shares)[:-1] * size).astype(np.int64)
        counts[takers, label] = np.diff(cuts, prepend=0, append=size)
    return counts


def _deal_counts(labels: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    hands: list[list[Indices]] = [[] for _ in counts]
    for label in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(labels == label))
        for hand, piece in zip(
            hands, np.split(members, np.cumsum(counts[:-1, label])), strict=True
        ):
            hand.append(piece)
    return [np.concatenate(hand) for hand in hands]


def _matching_test_parts(
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
