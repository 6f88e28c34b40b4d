"""The rows of `fedapp partition`: every class where it fits, a summary where it does not."""

import numpy as np

from fedapp.cli.listing import MOST_COLUMNS, client_rows


def test_few_classes_have_a_column_each():
    rows = client_rows(np.array([[3, 0], [1, 4]]), [2, 1], ("cat", "dog"), nested=False)
    assert rows == [
        {"client": 0, "cat": 3, "dog": 0, "train": 3, "test": 2},
        {"client": 1, "cat": 1, "dog": 4, "train": 5, "test": 1},
    ]


def test_many_classes_are_summed_up_unless_all_are_wanted():
    classes = [f"c{number}" for number in range(MOST_COLUMNS + 1)]
    counts = np.zeros((1, len(classes)), dtype=int)
    counts[0, [2, 5]] = [10, 30]
    [row] = client_rows(counts, [7], classes, nested=False)
    assert row == {
        "client": 0, "classes": 2, "most of": "c5", "share": "75%", "train": 40, "test": 7
    }  # fmt: skip
    [full] = client_rows(counts, [7], classes, nested=True)
    assert (full["classes"]["c5"], full["classes"]["c0"], full["train"]) == (30, 0, 40)


def test_a_class_may_be_called_as_a_total():
    counts, classes = np.array([[3, 1, 2]]), ("train", "test", "client")
    [row] = client_rows(counts, [9], classes, nested=False)
    assert row == {
        "client": 0, "class train": 3, "class test": 1, "class client": 2, "train": 6, "test": 9
    }  # fmt: skip
    [row] = client_rows(counts, [9], classes, nested=True)
    assert row == {
        "client": 0, "classes": {"train": 3, "test": 1, "client": 2}, "train": 6, "test": 9
    }  # fmt: skip
