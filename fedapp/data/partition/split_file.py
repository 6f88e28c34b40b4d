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
from fedapp.core.files import write_named
from fedapp.core.paths import expanded, name_and_hash, readable
from fedapp.data.partition.assignment import Indices, Partition, count_classes, matching_test_parts

_KEYS = {"train", "test", "pooled"}


def find_split(name: str, data_dir: str) -> Path:
    """Return the path of a run's `partition-file`: in its data-dir, or as it is."""
    path = expanded(name, "partition-file")
    inside = expanded(data_dir, "data-dir") / path
    with readable(inside, "partition-file"):
        return inside if inside.exists() else path


def source(path: Path) -> str:
    """Return a file's name and a hash of its content; "none" if it cannot be read."""
    try:
        return name_and_hash(path, path.read_bytes())
    except OSError:
        return "none"


def write_split(path: Path, partition: Partition) -> None:
    """Save a partition as a file that `read_split` reads; raises UserError if that fails."""
    if partition.tests is not None:
        raise UserError("a partition-file lists test images: set validation-share=0 to save one")
    content = {
        "train": [part.tolist() for part in partition.train],
        "test": [part.tolist() for part in partition.test],
        "pooled": partition.pooled,
    }
    write_named(path, f"{json.dumps(content)}\n".encode(), "a JSON file")


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
    content, read_from = _read(path)
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
        return Partition(train, test, pooled=pooled, source=read_from)
    if pooled:
        _check_divisible(path, train)
        return Partition(train, [], source=read_from)
    classes = count_classes(train_labels, test_labels)
    counts = Partition(train, []).class_counts(train_labels, classes)
    test = matching_test_parts(test_labels, counts, rng)
    return Partition(train, test, source=read_from)


def _read(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's content and its name and hash."""
    try:
        text = path.read_bytes()
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read partition-file {path}: {error}; it must be JSON, as "
            "`fedapp partition --save FILE` writes it"
        ) from None
    if not isinstance(content, dict) or "train" not in content or set(content) - _KEYS:
        raise UserError(
            f'partition-file {path} must be a JSON object with "train" and, if you like, "test" '
            'and "pooled"'
        )
    if not isinstance(content.get("pooled", False), bool):
        raise UserError(f'"pooled" of partition-file {path} must be true or false')
    return content, name_and_hash(path, text)


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
        if len(set(positions)) < len(positions):
            raise UserError(f"{where} lists an image more than once")
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


def _check_divisible(path: Path, train: list[Indices]) -> None:
    """Raise UserError if a client's images are too few to hold out some of them."""
    for client, part in enumerate(train):
        if len(part) < 2:
            raise UserError(
                f'client {client} in "train" of partition-file {path} has one image and no test '
                'images: give it two, or list test images in "test"'
            )


def _check_apart(path: Path, train: list[Indices], test: list[Indices]) -> None:
    """Raise UserError if a pool has no test images, or a training image among them."""
    if not any(map(len, test)):
        raise UserError(f'"test" of partition-file {path} has no images; leave it out or fill it')
    both = np.intersect1d(np.concatenate(train), np.concatenate(test))
    if len(both):
        raise UserError(
            f'image {both[0]} is both in "train" and in "test" of partition-file {path}'
        )
