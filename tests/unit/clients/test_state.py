"""Client state: what is stored comes back, for the right round, client and run only."""

import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from state_cases import CURRENT, HEADER, PREVIOUS, arrays, same

from clients.state.listing import export_state
from clients.state.store import ClientState, StateError


@pytest.fixture
def state(tmp_path) -> ClientState:
    return ClientState(tmp_path, "r", 3, HEADER)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "r" / "3"


def test_nothing_is_stored_and_no_folder_made_before_the_first_training(state, tmp_path):
    assert state.load(1) is None
    assert not list(tmp_path.iterdir())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter("__metadata__".__ne__),
        hnp.arrays(
            st.sampled_from(
                ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8"]
            ),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
        ),
        max_size=4,
    )
)
def test_arrays_of_every_type_and_shape_come_back_bit_for_bit(content):
    with tempfile.TemporaryDirectory() as root:
        state = ClientState(Path(root), "r", 3, HEADER)
        state.save(content, 1)
        assert same(state.load(2), content)


def test_strided_transposed_and_big_endian_arrays_keep_their_values(state):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    state.save({"t": base.T, "s": base[::2, ::-3], "b": base.astype(">f4")}, 1)
    found = state.load(2)
    assert np.array_equal(found["t"], base.T)
    assert np.array_equal(found["s"], base[::2, ::-3])
    assert np.array_equal(found["b"], base)


def test_loaded_arrays_can_be_changed_without_changing_the_file(state):
    state.save(arrays(1), 1)
    state.load(2)["w"][:] = 7
    assert same(state.load(2), arrays(1))


@pytest.mark.parametrize("bad", [np.array(["text"]), np.array([object()]), np.ones(2, complex)])
def test_an_array_that_cannot_be_stored_is_refused_and_the_state_kept(state, bad):
    state.save(arrays(1), 1)
    with pytest.raises(StateError, match="client 3 of run 'r' cannot be stored"):
        state.save({"x": bad}, 2)
    assert same(state.load(2), arrays(1))


def test_a_round_again_starts_from_the_state_before_it_however_often(state):
    state.save(arrays(1), 1)
    for value in (2, 3, 4):
        assert same(state.load(5), arrays(1))
        state.save(arrays(value), 5)
    assert same(state.load(5), arrays(1))
    assert same(state.load(6), arrays(4))


def test_the_first_round_again_starts_from_nothing(state):
    state.save(arrays(1), 4)
    assert state.load(4) is None
    state.save(arrays(2), 4)
    assert state.load(4) is None
    assert same(state.load(5), arrays(2))


def test_rounds_that_do_not_count_are_skipped_and_replaced(state):
    state.save(arrays(1), 2, accepted=0)
    assert state.load(4, accepted=0) is None
    state.save(arrays(2), 4, accepted=0)
    assert state.load(6, accepted=0) is None
    assert same(state.load(6, accepted=4), arrays(2))
    for value in (6, 7):
        state.save(arrays(value), value, accepted=4)  # round 6 counts for neither
        assert same(state.load(9, accepted=4), arrays(2))
    state.save(arrays(9), 9, accepted=7)
    assert same(state.load(11, accepted=7), arrays(7))
    assert same(state.load(11, accepted=9), arrays(9))
    with pytest.raises(StateError, match=r"version 4 .* no longer"):
        state.load(11, accepted=4)


def test_an_older_copy_than_the_accepted_round_is_a_lost_state(state, folder):
    state.save(arrays(3), 3, accepted=0)
    state.save(arrays(5), 5, accepted=3)
    assert same(state.load(7, accepted=5), arrays(5))
    (folder / CURRENT).unlink()  # as after restoring a backup of round 3
    assert state.load(7, accepted=5) is None
    assert same(state.load(5, accepted=3), arrays(3))


def test_a_client_cannot_go_back_beyond_its_last_round(state):
    state.save(arrays(1), 1)
    state.save(arrays(7), 7)
    for refused in (lambda: state.load(6), lambda: state.save(arrays(6), 6)):
        with pytest.raises(StateError, match=r"client 3 of run 'r'.*round 7.*round 6"):
            refused()
    assert same(state.load(8), arrays(7))


def test_a_state_two_rounds_back_is_an_error_and_not_another_version(state, folder):
    state.save(arrays(1), 1)
    state.save(arrays(2), 2)
    (folder / CURRENT).replace(folder / PREVIOUS)  # died between the renames of a third round
    assert same(state.load(3), arrays(2))
    with pytest.raises(StateError, match=r"version 1 .* no longer"):
        state.load(2)


def test_a_lost_previous_version_is_an_error_and_no_new_start(state, folder):
    state.save(arrays(1), 1)
    state.save(arrays(2), 2)
    (folder / PREVIOUS).unlink()
    with pytest.raises(StateError, match=r"version 1 .* no longer"):
        state.load(2)
    assert same(state.load(3), arrays(2))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**HEADER, "classes": "100"}, "has classes '10', but this run has '100'"),
        ({**HEADER, "bn": "batch"}, "has bn None, but this run has 'batch'"),
        ({"method": "scaffold", "model": "cnn", "classes": "10"}, "has seed '0', but this run"),
    ],
)
def test_a_state_of_another_method_model_or_data_is_refused(state, tmp_path, header, message):
    state.save(arrays(1), 1)
    other = ClientState(tmp_path, "r", 3, header)
    for refused in (lambda: other.load(2), lambda: other.save(arrays(2), 2)):
        with pytest.raises(StateError, match=message):
            refused()
    assert same(state.load(2), arrays(1))


def test_runs_and_clients_are_apart(state, tmp_path):
    state.save(arrays(1), 1)
    assert ClientState(tmp_path, "r2", 3, HEADER).load(2) is None
    assert ClientState(tmp_path, "r", 4, HEADER).load(2) is None


def test_folders_and_files_are_for_their_owner_only(tmp_path):
    root = tmp_path / "made" / "for-states"
    state = ClientState(root, "r", 3, HEADER)
    old = os.umask(0)
    try:
        state.save(arrays(1), 1)
        state.save(arrays(2), 2)
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path).rglob("*")}
    folders = {"made": 0o700, "for-states": 0o700, "r": 0o700, "3": 0o700}
    assert modes == {**folders, "lock": 0o600, CURRENT: 0o600, PREVIOUS: 0o600}


@pytest.mark.parametrize(
    "run_key",
    ["", ".", "..", ".hidden", "a/b", "../x", "/etc", "a\\b", "c:x", "a\0b", "a\nb", "x" * 201],
)
def test_a_run_key_that_could_leave_the_folder_is_refused(tmp_path, run_key):
    with pytest.raises(StateError, match="must be a plain folder name"):
        ClientState(tmp_path, run_key, 0, HEADER)
    with pytest.raises(StateError, match="must be a plain folder name"):
        export_state(tmp_path, run_key, 0, tmp_path / "x")


@pytest.mark.parametrize("client", [-1, "..", "3", 1.5, None])
def test_a_client_that_is_no_number_is_refused(tmp_path, client):
    with pytest.raises(StateError, match="must be a number from 0"):
        ClientState(tmp_path, "r", client, HEADER)


def test_numpy_integers_are_numbers(tmp_path):
    ClientState(tmp_path, "feddr+-digits-20260101", np.int64(5), HEADER).save(arrays(1), 1)
    assert (tmp_path / "feddr+-digits-20260101" / "5" / CURRENT).is_file()


def test_a_root_that_is_a_file_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot have a folder"):
        ClientState(tmp_path / "file", "r", 0, HEADER).save(arrays(1), 1)
