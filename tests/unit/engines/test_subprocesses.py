"""Processes that do one task: they end in good order when they or who started them are told to."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from waiting import wait_until

from fedapp.cli import app as cli
from fedapp.engines import launch
from fedapp.engines.resources import Resources
from fedapp.engines.subprocesses import INTERRUPTED, end_tasks, install_signal_handlers, run_task
from fedapp.experiments import jobs

ROOT = Path(__file__).parents[3]
CHILD = f"""
import sys, time
from pathlib import Path
from fedapp.engines.subprocesses import install_signal_handlers, take_task, watch_parent
install_signal_handlers()
folder = Path(take_task())
watch_parent()
try:
    (folder / "started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    (folder / "closed").touch()
    sys.exit({INTERRUPTED})
"""
PARENT = """
import sys
from fedapp.engines.subprocesses import install_signal_handlers, run_task
install_signal_handlers()
sys.exit(run_task("child", sys.argv[1]))
"""


@pytest.fixture
def environment(tmp_path):
    """The environment of processes that find the module `child`."""
    (tmp_path / "child.py").write_text(CHILD)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def wait_for(path: Path) -> None:
    wait_until(path.exists, 30, path.name)


def test_under_nohup_a_closed_terminal_changes_nothing(handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    install_signal_handlers()
    signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "/results.csv")])
def test_a_file_that_cannot_be_written_ends_a_command_in_one_sentence(
    handlers, monkeypatch, capsys, error
):
    def fail():
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "fedapp: [Errno 13] Permission denied: '/results.csv'\n"


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_sigterm_does_what_ctrl_c_does_but_only_once(handlers, first):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    install_signal_handlers()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(first)
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGHUP)  # a closed terminal sends it twice
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_every_command_heeds_sigterm(handlers, monkeypatch):
    monkeypatch.setattr(cli, "app", lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        cli.main()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_task_ends_in_good_order_with_who_gave_it(environment, tmp_path, how):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment)
    wait_for(tmp_path / "started")
    parent.send_signal(how)
    assert parent.wait(30) == (INTERRUPTED if how == signal.SIGTERM else -signal.SIGKILL)
    wait_for(tmp_path / "closed")


def test_an_interrupted_task_that_ends_with_an_error_counts_as_interrupted(environment, tmp_path):
    (tmp_path / "child.py").write_text(CHILD.replace(f"sys.exit({INTERRUPTED})", "sys.exit(1)"))
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment)
    wait_for(tmp_path / "started")
    parent.send_signal(signal.SIGINT)
    assert parent.wait(30) == INTERRUPTED


def test_tasks_that_other_threads_wait_for_can_be_ended(environment, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(run_task, "child", str(tmp_path), env=environment)
        wait_for(tmp_path / "started")
        end_tasks()
        assert code.result(30) == INTERRUPTED
    assert (tmp_path / "closed").exists()


def test_runs_beside_each_other_end_when_who_started_them_is_interrupted(monkeypatch):
    told, tried = threading.Event(), []
    monkeypatch.setattr(jobs, "end_tasks", told.set)

    def work(item: int) -> bool:
        tried.append(item)
        if item == 2:
            raise KeyboardInterrupt
        return told.wait(10)

    with pytest.raises(KeyboardInterrupt):
        list(jobs.run_parallel(2, work, range(1, 9)))
    assert told.is_set()
    assert len(tried) < 8


def test_no_run_follows_one_that_was_interrupted(monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_: INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        jobs.run_attached(ROOT, {}, Resources())


def test_a_failed_run_returns_its_exit_code(monkeypatch):
    monkeypatch.setattr(launch, "run", lambda *_: 1)
    assert jobs.run_attached(ROOT, {}, Resources()) == 1
