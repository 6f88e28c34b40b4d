"""The splits of the papers with one shared model: IID, shards, LDA, unbalanced.

Small differences between implementations (rounding, caps, the test parts) change the published
results by points, so each function documents them.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedapp.core.errors import UserError
from fedapp.data.partition.assignment import (
    Indices,
    Partition,
    assign_counts,
    assign_evenly,
    assign_randomly,
    assign_shards,
    check_clients,
    count_classes,
    draw_counts,
    matching_test_parts,
    quotas_by_largest_remainder,
)

# On CIFAR-10 with 100 clients and alpha = 0.05, a published setting, 1 draw in 5000 is accepted.
MAX_DRAWS = 50_000
LDA_LEAST = 10  # samples of a client
# The number of clients that a draw leaves short is nearly Poisson: of mean m, none with
# probability exp(-m). Above 12 fewer than a third of 50,000-draw searches would succeed.
TRIAL_DRAWS, MOST_SHORT = 100, 12.0
LEAST_UNBALANCED = 10
_ABSURD = 100  # shards for each training image


def iid(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    rng: np.random.Generator,
    stratified: bool = False,
) -> Partition:
    """Split both sets into random parts whose sizes differ by at most one sample.

    With `stratified` the clients' counts of each class also differ by at most one. If there are
    more clients than test samples, some test parts are empty.

    Raises:
        UserError: fewer training samples than clients.
    """
    check_clients(train_labels, num_clients)
    assign = assign_evenly if stratified else assign_randomly
    return Partition(assign(train_labels, num_clients, rng), assign(test_labels, num_clients, rng))


def shards(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    shards_per_client: int,
    rng: np.random.Generator,
    names: Sequence[str] = (),
) -> Partition:
    """Give each client `shards_per_client` one-class shards, hence at most that many classes.

    Each class is cut into num_clients * shards_per_client / classes shards of equal size (left-over
    samples are added to the first shards, one each). The test set has the same client-by-class
    assignment, so a client has the same classes in the same proportions in both sets.
    `names` are those of the classes, for an error.

    Raises:
        UserError: the number of shards per class is not an integer, or a class is too small.
    """
    check_clients(train_labels, num_clients)
    classes = count_classes(train_labels, test_labels)
    total = num_clients * shards_per_client
    if shards_per_client < 1 or total % classes:
        raise UserError(
            f"num-clients x shards must be a positive multiple of the {classes} classes, "
            f"but {num_clients} x {shards_per_client} = {total}"
        )
    if total > _ABSURD * len(train_labels):  # a list of them would fill the memory
        raise UserError(
            f"num-clients x shards is {total}, but there are only {len(train_labels)} training "
            "images to divide into shards"
        )
    listed = np.repeat(np.arange(classes), total // classes)
    assignment = rng.permutation(listed).reshape(num_clients, shards_per_client)
    return Partition(
        assign_shards(train_labels, assignment, rng, "training", names),
        assign_shards(test_labels, assignment, rng, "test", names),
    )


def lda(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
    balance_cap: bool = True,
) -> Partition:
    """Split each class by proportions drawn from a symmetric Dirichlet(alpha) over the clients.

    With `balance_cap` a client that already has an average share gets no samples of the following
    classes (as in the released code of MOON, FedNTD and others). The draw is repeated until every
    client has `LDA_LEAST` samples, or half an average share if that is less. The search ends after
    `TRIAL_DRAWS` draws if they make success unlikely, and at the latest after `MAX_DRAWS`. A
    client's test part has the class proportions of its training part; the test parts of two
    clients may overlap.

    Raises:
        UserError: alpha is not positive, or no draw gave every client enough samples.
    """
    check_clients(train_labels, num_clients)
    if not alpha > 0 or not np.isfinite(alpha):
        raise UserError(f"alpha must be a positive number, but it is {alpha}")
    classes = count_classes(train_labels, test_labels)
    class_sizes = np.bincount(train_labels, minlength=classes)
    least = min(LDA_LEAST, max(1, len(train_labels) // (2 * num_clients)))
    draws, short = 0, 0  # how many clients, in all draws together, have fewer samples than `least`
    while draws < MAX_DRAWS and (draws != TRIAL_DRAWS or short <= MOST_SHORT * draws):
        counts = draw_counts(class_sizes, num_clients, alpha, rng, balance_cap)
        lacking = int((counts.sum(axis=1) < least).sum())
        if not lacking:
            train = assign_counts(train_labels, counts, rng)
            return Partition(train, matching_test_parts(test_labels, counts, rng))
        draws, short = draws + 1, short + lacking
    raise UserError(
        f"no LDA split with alpha = {alpha} gives each of {num_clients} clients {least} or more "
        f"samples ({draws} draws tried: {short / draws:.0f} clients on average have fewer); raise "
        "alpha or lower num-clients"
    )


def unbalanced(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    sigma: float,
    rng: np.random.Generator,
) -> Partition:
    """Split both sets at random into parts whose sizes are log-normal with deviation `sigma`.

    The sizes differ, but the expected class proportions do not, because the samples are shuffled. A
    client gets `LEAST_UNBALANCED` training samples, or half an average share if that is less,
    before the rest is divided. Sigma 0 gives equal parts. The test set is divided in the same
    proportions, each sample once.

    Raises:
        UserError: fewer training samples than clients.
    """
    check_clients(train_labels, num_clients)
    shares = rng.lognormal(0.0, sigma, num_clients)
    least = min(LEAST_UNBALANCED, max(1, len(train_labels) // (2 * num_clients)))
    sizes = least + _sizes(shares, len(train_labels) - least * num_clients)
    test_sizes = _sizes(sizes / sizes.sum(), len(test_labels))
    return Partition(
        _cut(rng.permutation(len(train_labels)), sizes),
        _cut(rng.permutation(len(test_labels)), test_sizes),
    )


def _sizes(shares: NDArray[np.float64], total: int) -> Indices:
    """Divide `total` samples in proportion to `shares` by largest remainder."""
    available = np.full(len(shares), total)
    scaled = np.rint(shares / shares.max() * 2**40).astype(np.int64)
    return quotas_by_largest_remainder(scaled, total, available)


def _cut(order: Indices, sizes: Indices) -> list[Indices]:
    return np.split(order, np.cumsum(sizes)[:-1])


def own(
    train_labels: Indices, test_labels: Indices, num_clients: int, client: int | None
) -> Partition:
    """Give all data of this host to its one client; the server (None) only tests.

    Raises:
        UserError: a client without training images, or a server without test images.
    """
    nothing = np.empty(0, dtype=np.int64)
    train, test = [nothing] * num_clients, [nothing] * num_clients
    if client is None:
        if not len(test_labels):
            raise UserError("the server needs images to test on: test/CLASS/* in its data-dir")
        return Partition(train, test)
    if not len(train_labels):
        raise UserError(f"client {client} has no images to train on: train/CLASS/* in its data-dir")
    train[client], test[client] = np.arange(len(train_labels)), np.arange(len(test_labels))
    return Partition(train, test)
