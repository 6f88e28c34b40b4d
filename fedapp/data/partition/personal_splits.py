"""The splits of the papers with personal models (FedDOR and others).

The published training and test images are pooled and assigned to the clients, and each client's
part is then divided into its own training and test split. Without pooling the same assignments
divide the training set, and each client's test part has its training proportions, as in the other
splits.
"""

import json
from collections.abc import Sequence
from math import ceil

import numpy as np

from fedapp.core.errors import UserError
from fedapp.data.partition.assignment import (
    Indices,
    Partition,
    assign_counts,
    check_clients,
    count_classes,
    draw_counts,
    matching_test_parts,
)
from fedapp.data.readers.cache import cached_arrays

TRAIN_FRACTION = 0.75
LEAST_SIZE = 128  # gives a test split (25 %) of 32 samples, one batch
MAX_DRAWS = 1000
LEAST_ACCEPTED = 4  # accepted size after MAX_DRAWS failures


def pathological(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
    names: Sequence[str] = (),
) -> Partition:
    """Give each client at most `classes_per_client` classes, with very different sizes.

    Classes are assigned in random order. Each class is assigned to the first ceil(clients * per
    client / classes) clients, in one random order, that have fewer than `classes_per_client`
    classes. All of them but the last get a uniform random number of samples, between a tenth of an
    average share and an average share; the last gets the rest. If no client can get another class,
    the remaining classes are left out and the partition has a note, by their `names`, if given.

    Raises:
        UserError: a client cannot have so many classes, or a class has too few samples.
    """
    check_clients(train_labels, num_clients)
    classes = count_classes(train_labels, test_labels)
    if not 1 <= classes_per_client <= classes:
        raise UserError(
            f"classes-per-client must be between 1 and the {classes} classes, "
            f"but it is {classes_per_client}"
        )
    class_sizes = np.bincount(train_labels, minlength=classes)
    counts = _pathological_counts(class_sizes, num_clients, classes_per_client, rng)
    left_out = np.flatnonzero((counts.sum(axis=0) == 0) & (class_sizes > 0)).tolist()
    listed = [names[label] for label in left_out] if names else left_out
    notes = [f"classes {listed} are left out: no client may take one more"]
    return Partition(
        assign_counts(train_labels, counts, rng),
        matching_test_parts(test_labels, counts, rng),
        notes=tuple(notes[: len(left_out)]),
    )


def _pathological_counts(
    class_sizes: Indices, num_clients: int, classes_per_client: int, rng: np.random.Generator
) -> Indices:
    """Draw how many samples of each class each client gets: int array [clients, classes]."""
    counts = np.zeros((num_clients, len(class_sizes)), dtype=np.int64)
    clients_per_class = ceil(num_clients * classes_per_client / len(class_sizes))
    least = least_size(int(class_sizes.sum()), num_clients) / len(class_sizes)
    clients, quota = rng.permutation(num_clients), np.full(num_clients, classes_per_client)
    for label in rng.permutation(len(class_sizes)):
        chosen = clients[quota[clients] > 0][:clients_per_class]
        if not len(chosen):
            break
        quota[chosen] -= 1
        counts[chosen, label] = _uneven(int(class_sizes[label]), len(chosen), least, rng)
    if not counts.sum(axis=1).all():
        raise UserError(
            f"a class with {class_sizes.min()} samples is too small for the pathological partition "
            f"of {num_clients} clients; lower num-clients or classes-per-client"
        )
    return counts


def _uneven(size: int, parts: int, least: float, rng: np.random.Generator) -> Indices:
    """Divide `size` samples: parts are uniform up to the mean, and the last part is the rest."""
    low, high = ceil(max(size / parts / 10, least)), ceil(size / parts)
    if low >= high:
        return np.full(parts, size // parts) + (np.arange(parts) < size % parts)
    drawn = rng.integers(low, high, parts - 1)
    return np.append(drawn, size - drawn.sum())


def dirichlet(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    alpha: float,
    rng: np.random.Generator,
) -> Partition:
    """Split each class by Dirichlet(alpha) proportions over the clients below an average size.

    The draw is repeated until every client has `least_size` samples. If `MAX_DRAWS` draws fail, the
    result is the draw whose smallest client is largest, and the partition has a note.

    Raises:
        UserError: alpha is not positive, or no draw gave every client `LEAST_ACCEPTED` samples or
            the required number, if that is smaller.
    """
    check_clients(train_labels, num_clients)
    if not alpha > 0 or not np.isfinite(alpha):
        raise UserError(f"alpha must be a positive number, but it is {alpha}")
    classes = count_classes(train_labels, test_labels)
    class_sizes = np.bincount(train_labels, minlength=classes)
    required = least_size(len(train_labels), num_clients)
    best = _best_draw(class_sizes, num_clients, alpha, rng)
    smallest = int(best.sum(axis=1).min())
    accepted = min(required, LEAST_ACCEPTED)
    if smallest < accepted:
        raise UserError(
            f"no Dirichlet split with alpha = {alpha} gives each of {num_clients} clients "
            f"{accepted} samples ({MAX_DRAWS} draws tried); raise alpha or lower num-clients"
        )
    note = f"the smallest client has {smallest} samples, not {required}, in the best of {MAX_DRAWS}"
    return Partition(
        assign_counts(train_labels, best, rng),
        matching_test_parts(test_labels, best, rng),
        notes=(f"{note} draws",) if smallest < required else (),
    )


def _best_draw(
    class_sizes: Indices, num_clients: int, alpha: float, rng: np.random.Generator
) -> Indices:
    """Return the first sufficient draw, or the best of all: int array [clients, classes].

    A thousand draws for a thousand clients take half a minute, and every process of a run needs the
    result. The first process stores it, with the state of `rng` afterwards, in the cache folder.
    """
    state = rng.bit_generator.state
    key = f"{class_sizes.tolist()} {num_clients} {alpha} {MAX_DRAWS} {state}"
    cached = cached_arrays(
        "dirichlet", key, [], lambda: _draw(class_sizes, num_clients, alpha, rng)
    )
    rng.bit_generator.state = json.loads(cached["state"].tobytes())
    return cached["counts"]


def _draw(
    class_sizes: Indices, num_clients: int, alpha: float, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    required = least_size(int(class_sizes.sum()), num_clients)
    best, smallest = np.zeros((num_clients, len(class_sizes)), dtype=np.int64), -1
    for _ in range(MAX_DRAWS):
        counts = draw_counts(class_sizes, num_clients, alpha, rng, balance_cap=True)
        if (size := int(counts.sum(axis=1).min())) > smallest:
            best, smallest = counts, size
        if smallest >= required:
            break
    state = json.dumps(rng.bit_generator.state).encode()
    return {"counts": best, "state": np.frombuffer(state, dtype=np.uint8)}


def least_size(num_samples: int, num_clients: int) -> int:
    """Return the required number of samples of the smallest client."""
    return min(LEAST_SIZE, num_samples // (2 * num_clients))


def hold_out(parts: list[Indices], rng: np.random.Generator) -> tuple[list[Indices], list[Indices]]:
    """Divide each client's samples at random into 75 % for training and 25 %, or one, for testing.

    Raises:
        UserError: a client has fewer than two samples.
    """
    train, test = [], []
    for client, part in enumerate(parts):
        if len(part) < 2:
            raise UserError(
                f"client {client} has {len(part)} samples, too few to train and to test on; "
                "lower num-clients, or set pool-data=false"
            )
        mixed = rng.permutation(part)
        cut = min(int(TRAIN_FRACTION * len(part)), len(part) - 1)
        train.append(mixed[:cut])
        test.append(mixed[cut:])
    return train, test
