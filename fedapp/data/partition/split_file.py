"""A split that a file lists: that of another program, or one that was saved here.

The file is JSON: {"train": [[0, 5], [2, 3]], "test": [[1], [0, 4]], "pooled": false}. For each
client it lists the positions of its images, counted from 0 in the order of the published training
and test sets. With "pooled" both lists count through one pool, training images first. Without
"test" each client's test part is drawn, as in other splits.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.core.errors import UserError
from fedapp.data.partition.assignment import Indices, Partition, count_classes, matching_test_parts

_KEYS = {"train", "test", "pooled"}


def write_split(path: Path, partition: Partition) -> None:
    """Save a partition as a file that `read_split` reads; raises UserError if that fails."""
    content = {
        "train": [part.tolist() for part in partition.train],
        "test": [part.tolist() for part in partition.test],
        "pooled": partition.pooled,
    }
    try:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the split to {path}: {error}") from error


def read_split(
    path: Path,
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    pooled: bool,
    rng: np.random.Generator,
) -> Partition:
    """Return the partition that a file lists.

    Without test parts the file's clients get test images in their training proportions, or, of a
    pool, the caller holds them out.

    Raises:
        UserError: no such file, or its lists do not fit the data, `num_clients` or `pooled`.
    """
    content = _read(path)
    if content.get("pooled", pooled) is not pooled:
        raise UserError(
            f"partition-file {path} is of {'' if not pooled else 'un'}pooled data: "
            f"set pool-data={str(not pooled).lower()}"
        )
    train = _parts(path, content, "train", len(train_labels), num_clients)
    _check_training_parts(path, train)
    if content.get("test") is not None:
        test = _parts(path, content, "test", len(test_labels), num_clients)
        if pooled:
            _check_apart(path, train, test)
        return Partition(train, test, pooled=pooled)
    if pooled:
        return Partition(train, [])
    classes = count_classes(train_labels, test_labels)
    counts = Partition(train, []).class_counts(train_labels, classes)
    return Partition(train, matching_test_parts(test_labels, counts, rng))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot read partition-file {path}: {error}; it must be JSON, as "
            "`fedapp partition --save FILE` writes it"
        ) from None
    if not isinstance(content, dict) or "train" not in content or set(content) - _KEYS:
        raise UserError(
            f'partition-file {path} must be a JSON object with "train" and, if you like, "test" '
            'and "pooled"'
        )
    return content


def _parts(
    path: Path, content: dict[str, Any], which: str, available: int, num_clients: int
) -> list[Indices]:
    """Return the index array of each client; raises UserError for lists of another form."""
    lists = content[which]
    if not isinstance(lists, list) or len(lists) != num_clients:
        found = f"{len(lists)} lists" if isinstance(lists, list) else "no lists"
        raise UserError(
            f'"{which}" of partition-file {path} has {found}, but num-clients is {num_clients}'
        )
    parts = []
    for client, positions in enumerate(lists):
        where = f'client {client} in "{which}" of partition-file {path}'
        whole = isinstance(positions, list) and all(type(each) is int for each in positions)
        if not whole:
            raise UserError(f"{where} must be a list of whole numbers")
        wrong = [each for each in positions if not 0 <= each < available]
        if wrong:
            raise UserError(f"{where} has {wrong[0]}, but there are images 0 to {available - 1}")
        parts.append(np.array(positions, dtype=np.int64))
    return parts


def _check_training_parts(path: Path, train: list[Indices]) -> None:
    """Raise UserError for a client without training images, or an image listed twice."""
    empty = [client for client, part in enumerate(train) if not len(part)]
    if empty:
        raise UserError(f'client {empty[0]} in "train" of partition-file {path} has no images')
    images, uses = np.unique(np.concatenate(train), return_counts=True)
    if (uses > 1).any():
        raise UserError(
            f'"train" of partition-file {path} lists image {images[uses > 1][0]} more than once'
        )


def _check_apart(path: Path, train: list[Indices], test: list[Indices]) -> None:
    """Raise UserError if an image of a pool is both a training and a test image."""
    both = np.intersect1d(np.concatenate(train), np.concatenate(test))
    if len(both):
        raise UserError(
            f'image {both[0]} is both in "train" and in "test" of partition-file {path}'
        )
