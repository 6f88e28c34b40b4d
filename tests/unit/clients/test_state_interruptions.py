"""Client state: the same round starts from the same state, whoever died, failed or came twice."""

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import save_file
from state_cases import CURRENT, HEADER, ROOT, arrays, child, in_a_child, same

import clients.state.store
from clients.state.store import ClientState, StateError


@pytest.fixture
def state(tmp_path) -> ClientState:
    return ClientState(tmp_path, "r", 3, HEADER)


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "r" / "3"


def fail_at(monkeypatch, function: str, call: int, number: int = errno.EIO) -> None:
    """Make the `call`-th call of an `os` function raise; the others work."""
    real, seen = getattr(os, function), []

    def failing(*args):
        seen.append(args)
        if len(seen) == call:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(os, function, failing)


def test_the_state_survives_a_restart_and_rounds_without_participation(state, tmp_path):
    in_a_child(tmp_path, "state.save(arrays(1), 1); state.save(arrays(2), 2)")
    assert same(state.load(3), arrays(2))
    assert same(state.load(90), arrays(2))
    state.save(arrays(90), 90)
    assert in_a_child(tmp_path, "print(state.load(91)['w'].sum(), state.load(90)['n'])") == (
        f"{90 * 12}.0 2"
    )


def test_two_processes_write_the_same_bytes(tmp_path):
    files = []
    for name in "ab":
        in_a_child(tmp_path / name, "state.save(arrays(1), 1); state.save(arrays(2), 2)")
        files.append((tmp_path / name / "r" / "3" / CURRENT).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("function", "call"), [("fsync", 1), ("replace", 1), ("replace", 2), ("fsync", 2)]
)
def test_a_failure_at_any_step_leaves_the_state_before_the_round(
    state, folder, monkeypatch, function, call
):
    state.save(arrays(1), 1)
    state.save(arrays(2), 2)
    with monkeypatch.context() as patch:
        fail_at(patch, function, call)
        with pytest.raises(StateError, match=r"cannot be written.*Input/output error"):
            state.save(arrays(3), 3)
    assert same(state.load(3), arrays(2))
    assert not list(folder.glob(".*"))
    state.save(arrays(4), 3)
    assert same(state.load(3), arrays(2))
    assert same(state.load(4), arrays(4))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("function", "call"), [("fsync", 1), ("replace", 1), ("replace", 2), ("fsync", 2)]
)
def test_a_process_that_dies_at_any_step_leaves_the_state_before_the_round(
    state, tmp_path, function, call, first
):
    before = None if first else arrays(1)
    if not first:
        state.save(arrays(1), 1)
    die = f"""
real, calls = os.{function}, []
def dying(*args):
    calls.append(args)
    if len(calls) == {call}:
        os._exit(9)
    return real(*args)
os.{function} = dying
state.save(arrays(2), 2)
"""
    in_a_child(tmp_path, die, status=9)
    found = state.load(2)
    assert found is None if before is None else same(found, before)
    state.save(arrays(3), 2)
    assert same(state.load(3), arrays(3))
    found = state.load(2)
    assert found is None if before is None else same(found, before)


def test_dying_while_a_round_is_saved_again_keeps_the_state_before_it(state, tmp_path):
    state.save(arrays(1), 1)
    state.save(arrays(2), 2)
    in_a_child(tmp_path, "os.replace = lambda *args: os._exit(9)\nstate.save(arrays(3), 2)", 9)
    assert same(state.load(2), arrays(1))
    assert same(state.load(3), arrays(2))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_keeps_the_state(state, folder, monkeypatch):
    state.save(arrays(1), 1)
    with monkeypatch.context() as patch:
        patch.setattr(clients.state.store, "create", lambda path: os.open("/dev/full", os.O_WRONLY))
        with pytest.raises(StateError, match=r"client 3.*No space left.*is kept"):
            state.save(arrays(2), 2)
    assert same(state.load(2), arrays(1))
    assert not list(folder.glob(".*"))


def test_a_file_that_is_written_in_part_only_keeps_the_state(state, folder, tmp_path):
    state.save(arrays(1), 1)
    body = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    state.save({"w": np.zeros(100_000)}, 2)
except StateError as error:
    print(error)
"""
    assert "File too large" in in_a_child(tmp_path, body)
    assert same(state.load(2), arrays(1))
    assert sorted(path.name for path in folder.iterdir()) == ["lock", CURRENT]


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"\xff" * len(b)])
def test_a_damaged_file_is_an_error_that_names_it(state, folder, damage):
    state.save(arrays(1), 1)
    state.save(arrays(2), 2)
    file = folder / CURRENT
    file.write_bytes(damage(file.read_bytes()))
    for refused in (lambda: state.load(3), lambda: state.save(arrays(3), 3)):
        with pytest.raises(StateError, match=rf"{file} is not a complete state file"):
            refused()


def test_a_safetensors_file_of_something_else_is_an_error(state, folder):
    folder.mkdir(parents=True)
    save_file(arrays(1), folder / CURRENT)
    with pytest.raises(StateError, match="it has no stamp"):
        state.load(1)
    stamp = {"format": 2, "version": 1, "previous": 0, "last_round": 1, "header": HEADER}
    save_file(arrays(1), folder / CURRENT, {"state": json.dumps(stamp)})
    with pytest.raises(StateError, match="its format is 2, not 1"):
        state.load(1)


def test_a_second_process_is_refused_at_once_and_let_in_later(state, folder, tmp_path):
    hold = "with state.locked():\n    print('held', flush=True)\n    sys.stdin.read()"
    holder = subprocess.Popen(
        [*child(hold), tmp_path], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StateError, match=rf"client 3 of run 'r' is in use.*{folder}/lock"):
            state.locked().__enter__()
        with pytest.raises(StateError, match="is in use"):
            state.save(arrays(1), 1)
        assert ClientState(tmp_path, "r", 4, HEADER).load(1) is None
        holder.stdin.close()
    with state.locked():
        state.save(arrays(1), 1)
    assert same(state.load(2), arrays(1))


def test_a_second_store_in_the_same_process_is_refused_too(state, tmp_path):
    other = ClientState(tmp_path, "r", 3, HEADER)
    with state.locked(), pytest.raises(StateError, match="is in use"):
        other.save(arrays(1), 1)
    other.save(arrays(1), 1)


def test_a_file_system_without_locks_is_refused(state, monkeypatch):
    """A lock that is only a file would stay held after a crash."""

    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    sentence = "client 3 of run 'r' cannot be locked .* put state-dir on a file system with locks"
    with pytest.raises(StateError, match=sentence), state.locked():
        pass


def test_the_lock_is_given_back_after_an_error_and_a_killed_holder(state, tmp_path):
    with pytest.raises(ZeroDivisionError), state.locked():
        raise ZeroDivisionError
    in_a_child(tmp_path, "state.locked().__enter__(); os._exit(9)", status=9)
    state.save(arrays(1), 1)
    assert same(state.load(2), arrays(1))
