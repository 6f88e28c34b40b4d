"""What the server makes of uploads: refusals in words, class means, and means of many clients."""

import numpy as np
import pytest
from reference import HETEROGENEOUS
from small_clients import strategy_of

from strategies.aggregate import UpdateRefused
from strategies.fedproto import FedProto
from strategies.prototypes.uploads import (
    Table,
    TableShape,
    Upload,
    class_means,
    normalised,
    pairs,
    prototype_similarity,
    read_upload,
)


def upload(rows=None, classes=(0, 2), **changes):
    """A good upload of two classes with three features, or a changed one."""
    if rows is None:
        rows = np.ones((len(classes), 3), np.float32)
    arrays = {"proto": rows, "proto-classes": np.array(classes, np.int64)} | changes
    counted = 5 if "proto-counts" in changes else None
    return read_upload(arrays, TableShape(4, 3), counted)


def test_a_good_upload_is_taken():
    assert upload().classes.tolist() == [0, 2]
    assert upload(**{"proto-counts": np.array([2, 3])}).counts.tolist() == [2, 3]
    assert upload(classes=(), rows=np.zeros((0, 3), np.float32)).rows.shape == (0, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rows": np.array([[1, np.nan, 1], [1, 1, 1]], np.float32)}, "non-finite"),
        ({"rows": np.array([[1, np.inf, 1], [1, 1, 1]], np.float32)}, "non-finite"),
        ({"rows": np.full((2, 3), 1e9, np.float32)}, "1e\\+09, more than 1e\\+06"),
        ({"rows": np.ones((2, 5), np.float32)}, r"\(2, 5\), not float32 of \(2, 3\)"),
        ({"rows": np.ones((1, 3), np.float32)}, r"\(1, 3\)"),
        ({"rows": np.ones((2, 3), np.float64)}, "float64"),
        ({"classes": (0, 4)}, "class 4, outside 0..3"),
        ({"classes": (-1, 2)}, "class -1"),
        ({"classes": (2, 2)}, "2 prototypes of class 2"),
        ({"classes": (2, 0)}, "ascending"),
        ({"proto-classes": np.array([0.0, 2.0])}, "float64"),
        ({"proto-counts": np.array([3, 0])}, "counts 0 examples"),
        ({"proto-counts": np.array([3])}, "shape"),
        ({"proto-counts": np.array([3, 3])}, "counts 6 examples, and cannot .* more than 5"),
        ({"proto-counts": np.array([1 << 62, 1 << 62])}, "counts 9223372036854775808 examples"),
        ({"labels": np.array([3])}, "instead of"),
    ],
)
def test_a_malformed_upload_is_refused_in_words(changes, sentence):
    with pytest.raises(UpdateRefused, match=sentence):
        upload(**changes)


def fedproto_uploads() -> list[Upload]:
    return [
        Upload(
            np.array([row["prototype"] for row in client.values()], np.float32),
            np.array([int(c) for c in client], np.int64),
            np.array([row["count"] for row in client.values()]),
        )
        for client in HETEROGENEOUS["fedproto_aggregation"]["clients"]
    ]


@pytest.mark.parametrize("weighting", ["count", "uniform"])
def test_fedproto_aggregation(weighting):
    expected = HETEROGENEOUS["fedproto_aggregation"][weighting]
    table = class_means(fedproto_uploads(), weighting == "count")
    assert table.classes.tolist() == [0, 1, 3]
    np.testing.assert_allclose(table.rows, [row for row in expected if row], rtol=1e-6)


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 0, 2]])
def test_the_order_of_the_replies_changes_nothing(order):
    uploads = fedproto_uploads()
    strategy = strategy_of(FedProto, shape=TableShape(4, 3), weighting="count", memory=False)
    strategy._read = {client: uploads[client] for client in order}
    for ours, theirs in zip(pairs(strategy.uploads()), pairs(uploads), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_there_is_no_mean_of_no_uploads_or_without_counts():
    with pytest.raises(ValueError, match="at least one"):
        class_means([])
    with pytest.raises(ValueError, match="no counts"):
        class_means([upload()], counted=True)


def test_normalised_rows_have_length_one_and_zeros_stay():
    rows = normalised(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)


def test_prototype_similarity_is_of_directions_and_of_two_different_classes():
    rows = np.array([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], np.float32)
    assert prototype_similarity(rows) == {
        "prototype_cosine_mean": 1 / 3,
        "prototype_cosine_largest": 1.0,
    }
    assert prototype_similarity(rows[:1]) == prototype_similarity(rows[:0]) == {}


def test_a_table_travels_in_as_many_bytes_as_its_values_take():
    sizes = HETEROGENEOUS["communication_bytes"]
    arrays = Table.full(np.zeros((sizes["C"], sizes["K"]))).arrays()
    assert arrays["proto"].nbytes == sizes["full_prototype_table_f32"]
    assert sum(array.nbytes for array in arrays.values()) == sizes["C"] * (4 * sizes["K"] + 8)
