"""Arrays read from a message without a copy, and bytes that are no array."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from strategies.rounds.records import (
    ERROR,
    FAILURES,
    ClientFailure,
    from_array_record,
    pack_report,
    to_array_record,
    unpack_failures,
    view_array_record,
)


def test_views_are_the_arrays_that_were_packed_and_cannot_be_changed():
    rng = np.random.default_rng(0)
    arrays = {
        "matrix": rng.normal(size=(3, 4)).astype(np.float32), "sums": np.arange(5) << 40,
        "number": np.array(2.5), "nothing": np.zeros((0, 3), np.float32),
    }  # fmt: skip
    record = to_array_record(arrays)
    views, copies = view_array_record(record), from_array_record(record)
    for name, array in arrays.items():
        np.testing.assert_array_equal(views[name], array)
        assert (views[name].dtype, views[name].shape) == (copies[name].dtype, copies[name].shape)
        assert not views[name].flags.writeable
        assert not views[name].flags.owndata


def test_a_fortran_ordered_array_of_another_sender_is_read_right():
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    record = ArrayRecord({"w": Array(array)})
    np.testing.assert_array_equal(view_array_record(record)["w"], array)


@pytest.mark.parametrize("cut", [0, 5, 40, 130])
def test_bytes_that_are_no_array_are_refused(cut):
    whole = Array(np.arange(6.0))
    record = ArrayRecord({"w": Array("float64", (6,), "numpy.ndarray", whole.data[:cut])})
    with pytest.raises(ValueError, match=r"."):
        view_array_record(record)


def test_pickled_objects_are_refused():
    import io

    text = io.BytesIO()
    np.save(text, np.array([{"a": 1}], object), allow_pickle=True)
    record = ArrayRecord({"w": Array("object", (1,), "numpy.ndarray", text.getvalue())})
    with pytest.raises(ValueError, match="OBJECT"):
        view_array_record(record)


def test_a_failure_travels_without_its_place_which_only_the_server_knows():
    content = pack_report([], [ClientFailure(4, ERROR, "no disk", " on node 7")])
    assert set(content.config_records[FAILURES]) == {"client", "kind", "reason"}
    assert unpack_failures(content) == [ClientFailure(4, ERROR, "no disk")]
