"""The folder of all client states, by its functions and by `fedapp state`."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from state_cases import CURRENT, HEADER, arrays, same
from typer.testing import CliRunner

from clients.state import listing
from clients.state.listing import UnknownRun, clean, export_state, list_states
from clients.state.store import ClientState, StateError, file_lock
from fedapp.cli.app import app
from fedapp.cli.state import state_folder
from fedapp.core.errors import UserError
from fedapp.core.files import safetensors_bytes


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Three runs of two clients, "old" changed first and "new" last, and a stranger's files."""
    folder = tmp_path / "states"
    monkeypatch.setenv("FEDAPP_STATE", str(folder))
    for age, run in enumerate(["new", "middle", "old"]):
        for client in range(2):
            state = ClientState(folder, run, client, HEADER)
            state.save(arrays(1), 1)
            state.save(arrays(2), 2 + client)
            for file in (folder / run / str(client)).iterdir():
                os.utime(file, (0, 10_000 - 1_000 * age))
    (folder / "photos" / "7").mkdir(parents=True)
    (folder / "photos" / "7" / "a.jpg").touch()
    (folder / "note.txt").touch()
    (folder / "link").symlink_to(folder / "new")
    return folder


def names(rows) -> list[str]:
    return [row.run_key for row in rows]


def call(*arguments: object):
    return CliRunner().invoke(app, ["state", *map(str, arguments)])


def test_removing_one_run_reads_no_other(root, monkeypatch):
    seen = []
    state_of = listing._state_of
    monkeypatch.setattr(listing, "_state_of", lambda run: seen.append(run.name) or state_of(run))
    assert names(clean(root, "middle")) == ["middle"]
    assert seen == ["middle"]


def test_one_client_that_trains_keeps_only_its_own_files(root, monkeypatch):
    monkeypatch.setattr(listing, "_PATIENCE", 0.1)
    first = sorted(path for path in (root / "middle").iterdir() if path.is_dir())[0]
    with file_lock(first), pytest.raises(StateError, match="client"):
        clean(root, "middle")
    assert {path.parent for path in (root / "middle").rglob("*.safetensors")} == {first}


def test_runs_of_other_users_are_left_alone(root, monkeypatch):
    folders = listing._folders

    def refused(folder):
        if folder.name == "new":
            raise StateError(f"{folder} cannot be listed: permission denied")
        return folders(folder)

    monkeypatch.setattr(listing, "_folders", refused)
    assert names(list_states(root)) == ["middle", "old"]
    assert names(clean(root, "old")) == ["old"]


def test_listing_tells_runs_clients_bytes_rounds_and_changes(root):
    rows = list_states(root)
    assert names(rows) == ["new", "middle", "old"]
    on_disk = sum(path.stat().st_size for path in (root / "new").rglob("*") if path.is_file())
    assert (rows[0].clients, rows[0].last_round, rows[0].modified) == (2, 3, 10_000)
    assert (rows[0].bytes, rows[0].damaged) == (on_disk, 0)
    assert list_states(root / "nowhere") == []


def test_listing_goes_on_past_a_damaged_file(root):
    (root / "new" / "1" / CURRENT).write_bytes(b"damaged")
    row = next(row for row in list_states(root) if row.run_key == "new")
    assert (row.clients, row.last_round, row.damaged) == (2, 2, 1)


def test_an_exported_state_is_a_plain_safetensors_file(root, tmp_path):
    target = tmp_path / "out.safetensors"
    size = export_state(root, "new", 1, target)
    assert size == target.stat().st_size
    assert same(load_file(target), arrays(2))
    with pytest.raises(StateError, match="exists already"):
        export_state(root, "new", 0, target)
    assert same(load_file(target), arrays(2))


def test_a_state_and_a_model_with_the_same_metadata_are_the_same_bytes(root):
    """Two packages that know nothing of each other write the format, in one way."""
    path = root / "new" / "0" / CURRENT
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    assert safetensors_bytes(arrays(2), metadata) == path.read_bytes()


def test_the_state_of_a_crash_between_the_renames_can_be_exported(root, tmp_path):
    (root / "new" / "0" / CURRENT).unlink()
    export_state(root, "new", 0, tmp_path / "out.safetensors")
    assert same(load_file(tmp_path / "out.safetensors"), arrays(1))


@pytest.mark.parametrize(
    ("run", "client", "target", "message"),
    [
        ("new", 9, "out", "client 9 of run 'new' has no state"),
        ("none", 0, "out", "there is no run 'none' in .*; there are: new, middle, old"),
        ("new", 0, "nowhere/out", "cannot be copied to"),
    ],
)
def test_an_export_that_cannot_be_made_says_why(root, tmp_path, run, client, target, message):
    with pytest.raises(StateError, match=message):
        export_state(root, run, client, tmp_path / target)


def test_cleaning_keeps_the_last_changed_runs_and_every_other_file(root):
    assert names(clean(root, keep=2, dry_run=True)) == ["old"]
    assert names(list_states(root)) == ["new", "middle", "old"]
    assert names(clean(root, keep=2)) == ["old"]
    assert not (root / "old").exists()
    assert names(clean(root, "new")) == ["new"]
    assert names(clean(root)) == ["middle"]
    assert sorted(path.name for path in root.iterdir()) == ["link", "note.txt", "photos"]
    assert (root / "photos" / "7" / "a.jpg").is_file()


def test_cleaning_leaves_what_a_user_put_beside_a_state(root):
    (root / "old" / "0" / "notes.txt").touch()
    clean(root, "old")
    assert [path.name for path in (root / "old").rglob("*")] == ["0", "notes.txt"]
    assert names(list_states(root)) == ["new", "middle"]


@pytest.mark.parametrize("run", ["none", "..", "link", "photos", "old/0"])
def test_cleaning_a_run_that_is_none_removes_nothing(root, run):
    with pytest.raises(StateError, match=r"no run .* there are: new, middle, old"):
        clean(root, run)
    assert len(list_states(root)) == 3


def test_a_client_that_is_training_is_not_cleaned_away(root):
    state = ClientState(root, "old", 0, HEADER)
    with state.locked(), pytest.raises(StateError, match="client 0 of run 'old' is in use"):
        clean(root, "old")
    assert same(state.load(3), arrays(2))


def test_processes_that_clean_one_run_at_once_do_not_disturb_each_other(tmp_path):
    def remove() -> str:
        barrier.wait()
        try:
            clean(tmp_path, "run")
        except UnknownRun:
            return "none left"
        return ""

    for _ in range(5):
        for client in range(10):
            ClientState(tmp_path, "run", client, HEADER).save(arrays(1), 1)
        barrier = Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            waiting = [threads.submit(remove) for _ in range(4)]
        assert {each.result() for each in waiting} <= {"", "none left"}
        assert list_states(tmp_path) == []


def test_the_list_command_prints_json_and_a_table(root):
    rows = json.loads(call("list", "--json").stdout)
    assert [row["run"] for row in rows] == ["new", "middle", "old"]
    assert rows[0]["bytes"] == list_states(root)[0].bytes
    assert {"clients": 2, "last_round": 3, "damaged": 0}.items() <= rows[0].items()
    table = call("list")
    assert table.exit_code == 0
    assert all(word in table.stdout for word in ("new", "middle", "old", "MB", "last_round"))
    assert json.loads(call("list", "--json", "--state-dir", root / "nowhere").stdout) == []


def test_the_export_command_writes_the_file(root, tmp_path):
    done = call("export", "new", 1, tmp_path / "out.safetensors")
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "out.safetensors") in done.stdout
    assert same(load_file(tmp_path / "out.safetensors"), arrays(2))


def test_the_clean_command_removes_only_when_told_twice(root):
    asked = call("clean", "--keep", 1)
    assert asked.exit_code == 0
    assert "add --yes" in asked.output
    assert "old" in asked.output
    assert len(list_states(root)) == 3
    done = call("clean", "--keep", 1, "--yes", "--json")
    assert [row["run"] for row in json.loads(done.stdout)] == ["middle", "old"]
    assert names(list_states(root)) == ["new"]
    assert call("clean", "--run", "new", "--yes").exit_code == 0
    assert list_states(root) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export", "new", "9", "x"], "client 9 of run 'new' has no state"),
        (["clean", "--run", "none", "--yes"], "there is no run 'none'"),
        (["clean", "--run", "new", "--keep", "1", "--yes"], "not both"),
        (["list", "--state-dir", __file__], "cannot be listed"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(root, arguments, message):
    mistake = call(*arguments).exception
    assert isinstance(mistake, UserError)
    assert message in str(mistake)
    assert "\n" not in str(mistake)
    assert len(list_states(root)) == 3


def test_the_state_folder_is_the_chosen_one_or_lies_beside_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDAPP_STATE", raising=False)
    assert state_folder() == tmp_path / "cache-state"
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "own"))
    assert state_folder() == tmp_path / "own"
    assert state_folder("~/x") == Path("~/x").expanduser()


def test_many_clients_can_be_locked_at_once(tmp_path):
    with ExitStack() as stack:
        for client in range(20):
            stack.enter_context(ClientState(tmp_path, "r", client, HEADER).locked())
    assert [(row.clients, row.last_round) for row in list_states(tmp_path)] == [(0, None)]


def test_the_expected_disk_use_is_what_a_run_takes(tmp_path):
    content = {"w": np.zeros(50_000, np.float32)}
    for client in range(3):
        state = ClientState(tmp_path, "r", client, HEADER)
        for server_round in (1, 2, 3):
            state.save(content, server_round)
    (row,) = list_states(tmp_path)
    assert row.bytes == pytest.approx(2 * 3 * 200_000, rel=0.01)
