"""Uploaded prototypes: checks of a client's upload, and class means over clients.

A client sends only the mean feature of each of its classes, the class ids and, for some methods,
counts. The server does not trust an upload, because one malformed row would reach every other
client as a training target. It accepts a whole upload, or refuses it with a reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.aggregate import Arrays, UpdateRefused

PROTOTYPES, CLASSES, COUNTS = "proto", "proto-classes", "proto-counts"
LARGEST = 1e6  # far above any trained feature; a larger value would dominate every mean


@dataclass(frozen=True)
class TableShape:
    """The sizes of a method's prototypes, and how often a client's counts include each image."""

    num_classes: int  # C
    width: int  # K, or C where the rows are logits
    passes: int = 1  # the most passes over its images in which a client computes its prototypes


@dataclass(frozen=True)
class Upload:
    """The prototypes of one client: rows [n, K] float32, their classes [n] and counts [n]."""

    rows: np.ndarray
    classes: np.ndarray
    counts: np.ndarray | None = None


@dataclass(frozen=True)
class Table:
    """The prototypes that the server broadcasts: rows [n, K] float32 of classes [n], ascending."""

    rows: np.ndarray
    classes: np.ndarray

    @classmethod
    def empty(cls, width: int) -> "Table":
        """Return a table without any class."""
        return cls(np.zeros((0, width), np.float32), np.zeros(0, np.int64))

    @classmethod
    def full(cls, rows: np.ndarray) -> "Table":
        """Return a table of all classes; row c belongs to class c."""
        return cls(np.asarray(rows, np.float32), np.arange(len(rows), dtype=np.int64))

    def arrays(self) -> Arrays:
        """Return the table as named arrays, for messages and checkpoints."""
        return {PROTOTYPES: self.rows, CLASSES: self.classes}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Table":
        """Restore a table from `arrays`."""
        return cls(arrays[PROTOTYPES], arrays[CLASSES])


def read_upload(
    arrays: Mapping[str, np.ndarray],
    shape: TableShape,
    counted: int | None = None,
) -> Upload:
    """Check one client's upload; raises `UpdateRefused` with the reason.

    Args:
        arrays: "proto" [n, K] float32, "proto-classes" [n] int64 ascending and, where the method
            needs them, "proto-counts" [n] int64; n may be 0.
        shape: the sizes that the upload must have.
        counted: the largest allowed sum of the counts; None: the method needs no counts.
    """
    names = {PROTOTYPES, CLASSES} | ({COUNTS} if counted is not None else set())
    if arrays.keys() != names:
        raise UpdateRefused(f"it uploads {sorted(arrays)} instead of {sorted(names)}")
    rows, classes = arrays[PROTOTYPES], arrays[CLASSES]
    _check_classes(classes, shape.num_classes)
    _check_rows(rows, len(classes), shape.width)
    if counted is not None:
        _check_counts(arrays[COUNTS], len(classes), counted)
    return Upload(rows, classes, arrays.get(COUNTS))


def _check_classes(classes: np.ndarray, num_classes: int) -> None:
    if classes.ndim != 1 or classes.dtype != np.int64:
        raise UpdateRefused(
            f"its class ids are {classes.dtype} of shape {classes.shape}, not int64"
        )
    outside = classes[(classes < 0) | (classes >= num_classes)]
    if len(outside):
        raise UpdateRefused(
            f"it has a prototype of class {outside[0]}, outside 0..{num_classes - 1}"
        )
    values, times = np.unique(classes, return_counts=True)
    if (times > 1).any():
        raise UpdateRefused(f"it has {times.max()} prototypes of class {values[times.argmax()]}")
    if (np.diff(classes) < 0).any():
        raise UpdateRefused("its class ids are not in ascending order")


def _check_rows(rows: np.ndarray, expected: int, width: int) -> None:
    if rows.shape != (expected, width) or rows.dtype != np.float32:
        raise UpdateRefused(
            f"its prototypes are {rows.dtype} of shape {rows.shape}, not float32 of "
            f"({expected}, {width})"
        )
    if not np.isfinite(rows).all():
        raise UpdateRefused("its prototypes have non-finite values")
    if (peak := float(np.abs(rows).max(initial=0.0))) > LARGEST:
        raise UpdateRefused(f"its prototypes have a value of {peak:.3g}, more than {LARGEST:g}")


def _check_counts(counts: np.ndarray, expected: int, most: int) -> None:
    if counts.shape != (expected,) or counts.dtype != np.int64:
        raise UpdateRefused(f"its counts are {counts.dtype} of shape {counts.shape}, not int64")
    if (counts < 1).any():
        raise UpdateRefused(f"it counts {counts.min()} examples of a class it has a prototype of")
    if (total := sum(counts.tolist())) > most:  # Python integers do not overflow
        raise UpdateRefused(f"it counts {total} examples, and cannot have seen more than {most}")


def pairs(uploads: Sequence[Upload]) -> tuple[np.ndarray, np.ndarray]:
    """Return all (prototype, class) pairs, [n, K] and [n], in the order of the uploads.

    `UploadRounds` orders them by client, whatever the order of the replies. Raises ValueError
    without uploads.
    """
    rows = np.concatenate([upload.rows for upload in uploads])
    return rows, np.concatenate([upload.classes for upload in uploads])


def class_means(uploads: Sequence[Upload], counted: bool = False) -> Table:
    """Return the mean over clients of every uploaded class, weighted by counts if `counted`.

    Sums are in float64 and in the order of the uploads. Raises ValueError without uploads, or
    without counts that are needed.
    Source: FedProto (Tan et al., AAAI 2022), equation 6 without its extra factor.
    """
    rows, classes = pairs(uploads)
    weights = np.ones(len(classes))
    if counted:
        weights = np.concatenate([_counts(upload) for upload in uploads]).astype(np.float64)
    present, positions = np.unique(classes, return_inverse=True)
    sums, totals = np.zeros((len(present), rows.shape[1])), np.zeros(len(present))
    np.add.at(sums, positions, rows * weights[:, None])
    np.add.at(totals, positions, weights)
    return Table((sums / totals[:, None]).astype(np.float32), present.astype(np.int64))


def _counts(upload: Upload) -> np.ndarray:
    if upload.counts is None:
        raise ValueError("an upload has no counts")
    return upload.counts


def normalised(rows: np.ndarray) -> np.ndarray:
    """Return the rows [n, K] scaled to length one; rows of zeros stay zero."""
    lengths = np.sqrt(np.square(rows, dtype=np.float64).sum(1, keepdims=True))
    return np.asarray(rows / np.maximum(lengths, 1e-12), np.float32)


def prototype_similarity(rows: np.ndarray) -> dict[str, float]:
    """Return the mean and largest |cos| over pairs of rows [n, K]; {} with fewer than two rows.

    0: all classes are orthogonal; 1: all have the same direction.
    """
    if len(rows) < 2:
        return {}
    directions = normalised(rows).astype(np.float64)
    between = np.abs(directions @ directions.T)[np.triu_indices(len(rows), 1)]
    return {
        "prototype_cosine_mean": float(between.mean()),
        "prototype_cosine_largest": float(between.max()),
    }
