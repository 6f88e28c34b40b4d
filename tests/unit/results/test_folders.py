"""The folders of runs: their names, when one is free, and that only one process runs in each."""

import errno
import re

import filelock
import pytest

from clients.state.store import client_folder
from fedapp.core.errors import UserError
from fedapp.results.folders import LOCK, existing, lock_run, named_runs
from fedapp.results.run_directory import RunDirectory

CONFIG = {"method": "fedavg", "dataset": "digits", "lr": 0.05}


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "one", CONFIG)


def test_a_data_set_with_slashes_in_its_name_still_names_one_folder(tmp_path):
    run = RunDirectory.create(tmp_path, "", {**CONFIG, "dataset": "hub:uoft-cs/cifar10"})
    assert run.path.parent == tmp_path
    assert re.fullmatch(r"fedavg-hub_uoft-cs_cifar10-\d{8}-\d{6}", run.name)


def test_a_folder_of_runs_is_no_run_but_is_answered_with_how_to_name_them(run, tmp_path):
    with pytest.raises(UserError, match=re.escape(f"name each run in it, write {tmp_path}/*/")):
        RunDirectory.load(tmp_path)
    with pytest.raises(UserError, match=r"has no config\.toml$"):
        RunDirectory.load(run.checkpoints)


def test_a_command_on_several_runs_takes_a_folder_of_them(run, tmp_path):
    other = RunDirectory.create(tmp_path, "another", CONFIG)
    (tmp_path / "sweep.csv").write_text("run,seed")
    assert named_runs(tmp_path) == [other.path, run.path]
    assert named_runs(run.path) == [run.path]
    for name in ("sweep.csv", "nowhere"):
        assert named_runs(tmp_path / name) == [tmp_path / name]  # which is refused by name


def test_a_run_that_has_not_done_anything_leaves_its_name_free(run, tmp_path):
    run.write_partition([[1]], ["cat"])
    run.state_key()
    run.truncate_rounds(0)
    with lock_run(run.path):
        again = RunDirectory.create(tmp_path, "one", {**CONFIG, "lr": 0.1})
    assert again.config()["lr"] == 0.1


def test_a_run_that_the_nodes_refused_leaves_its_name_free(run, tmp_path):
    run.write_summary({"status": "failed", "rounds": 0, "reason": "no node came"})
    RunDirectory.create(tmp_path, "one", {**CONFIG, "lr": 0.1})
    run.write_summary({"status": "failed", "rounds": 1, "reason": "no node is left"})
    with pytest.raises(UserError, match="already exists and is not empty"):
        RunDirectory.create(tmp_path, "one", CONFIG)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "summary.json", "notes.txt", "checkpoints/round-000001.safetensors"]
)
def test_what_a_run_has_done_or_someone_has_put_there_stays(run, tmp_path, name):
    (run.path / name).write_text("{}\n")
    with pytest.raises(UserError, match="already exists and is not empty; choose another"):
        RunDirectory.create(tmp_path, "one", {**CONFIG, "lr": 0.1})
    assert (run.path / name).read_text() == "{}\n"
    assert run.config()["lr"] == 0.05


def test_the_configuration_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text("title = 'mine'")
    with pytest.raises(UserError, match="not empty"):
        RunDirectory.create(tmp_path, "site", CONFIG)
    assert (tmp_path / "site" / "config.toml").read_text() == "title = 'mine'"


def test_one_process_at_a_time_runs_in_a_folder(tmp_path):
    path = tmp_path / "runs" / "one"
    said = pytest.raises(UserError, match=rf"another process is running in .* {path}; wait for it")
    with lock_run(path), said, lock_run(path):
        pass
    with lock_run(path):
        assert RunDirectory.create(path.parent, "one", CONFIG).path == path


def test_a_folder_whose_first_file_is_being_written_is_lock_run(tmp_path):
    path = tmp_path / "one"
    with lock_run(path):
        (path / "checkpoints").mkdir()
        (path / ".config.toml.7.tmp").write_text("method = ")
        with pytest.raises(UserError, match="another process is running"), lock_run(path):
            pass


def test_a_folder_of_something_else_gets_no_lock(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"cat")
    with lock_run(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_gets_none_that_outlives_its_process(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with lock_run(tmp_path / "one"), lock_run(tmp_path / "one"):
        pass


@pytest.mark.parametrize("problem", [OSError(38, "no locks here"), NotImplementedError()])
def test_a_place_without_locks_can_be_used(tmp_path, monkeypatch, problem):
    def refuse(self):
        raise problem

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with lock_run(tmp_path / "one"):
        assert (tmp_path / "one").is_dir()


@pytest.mark.parametrize("name", ["run 12:00", ".x", "...", "字" * 70, "é" * 120])
def test_every_run_name_gives_a_name_for_states(tmp_path, name):
    key = RunDirectory.create(tmp_path, name, CONFIG).state_key()
    assert client_folder(tmp_path, key, 3) == tmp_path / key / "3"


def test_a_run_that_starts_again_has_another_name_for_states(run):
    assert run.earlier_state_key() == ""
    first = run.state_key()
    assert run.state_key() == run.earlier_state_key() == first
    second = run.new_state_key()
    assert first != second == run.state_key()
    assert first.startswith("one-")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("summary.json", '{"status": "failed"}', "or set resume='auto' to train that run from"),
        (
            "summary.json",
            '{"status": "completed"}',
            "that run is completed, and has no check",
        ),
        ("checkpoints/round-000001.safetensors", "", "or set resume='auto' to continue that run"),
    ],
)
def test_a_taken_name_says_whether_its_run_can_go_on(run, tmp_path, name, content, words):
    (run.path / name).write_text(content)
    with pytest.raises(UserError, match=f"choose another run-name.*{words}"):
        RunDirectory.create(tmp_path, "one", CONFIG)


def test_a_name_without_its_folder_is_answered_with_the_path(run, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "runs").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UserError, match=r"is not a folder; .*; did you mean runs/one\?$"):
        existing("one")
    with pytest.raises(UserError, match=r"is not a folder; give the path of a run directory\.$"):
        existing("two")
