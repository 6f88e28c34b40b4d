"""Checkpoint files: what is saved comes back, and a file that does not fit is refused by name."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedapp.core.errors import UserError
from fedapp.results import checkpoint
from fedapp.results.checkpoint import Checkpoint

ARRAYS = {"head.weight": np.arange(6, dtype=np.float32).reshape(2, 3)}
STATE = {"c/head.weight": np.full((2, 3), 7.0, np.float32)}


@pytest.fixture
def saved(tmp_path):
    return checkpoint.save(tmp_path, Checkpoint(12, "fingerprint", ARRAYS, STATE), keep=2)


def test_a_checkpoint_comes_back_bit_for_bit(saved):
    found = checkpoint.load(saved, "fingerprint")
    assert (found.server_round, found.fingerprint) == (12, "fingerprint")
    for expected, arrays in ((ARRAYS, found.arrays), (STATE, found.strategy)):
        assert list(arrays) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(arrays[name], array, strict=True)


def test_only_the_newest_are_kept(saved, tmp_path):
    for number in (13, 14):
        checkpoint.save(tmp_path, Checkpoint(number, "fingerprint", ARRAYS, STATE), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "round-000013.safetensors", "round-000014.safetensors",
    ]  # fmt: skip


def test_a_users_copy_is_no_checkpoint_of_a_round(saved, tmp_path):
    copy = tmp_path / "round-best.safetensors"
    copy.write_bytes(saved.read_bytes())
    checkpoint.save(tmp_path, Checkpoint(13, "fingerprint", ARRAYS, STATE), keep=1)
    assert list(checkpoint.by_round(tmp_path)) == [13]
    assert copy.exists()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"format": 2, "round": 12, "configuration": "other"}, "made with another configuration"),
        ({"round": 12, "configuration": "fingerprint"}, r"another version .*\(format 1, not 2\)"),
        ({"format": 3, "round": 12}, r"another version .*\(format 3, not 2\); resume or analyse"),
        ("no header", "is not a complete checkpoint"),
        (None, "is not a complete checkpoint"),
        ({"format": 2, "round": 12}, "is not a complete checkpoint: 'configuration'"),
        ({"format": 2, "round": "x", "configuration": "fingerprint"}, "complete checkpoint: inval"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_its_path(saved, header, message):
    save_file(load_file(saved), saved, {"checkpoint": json.dumps(header)})
    with pytest.raises(UserError, match=f"{saved} .*{message}"):
        checkpoint.load(saved, "fingerprint")


def test_a_truncated_checkpoint_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-10])
    with pytest.raises(UserError, match="is not a complete checkpoint"):
        checkpoint.load(saved, "fingerprint")
