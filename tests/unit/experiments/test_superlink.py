"""The SuperLink around a run: what is said when it does not start, and that it never stays."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from fedapp.cli import app as cli
from fedapp.core.errors import UserError
from fedapp.experiments.bench import superlink as module
from fedapp.experiments.bench.superlink import local_superlink


@pytest.fixture
def superlink(monkeypatch, tmp_path):
    """Let a Python script stand for the SuperLink's program; gives its processes."""
    started = []

    def stand_in(script: str) -> list[subprocess.Popen]:
        program = tmp_path / "program"
        program.write_text(f"#!{sys.executable}\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(module, "program", lambda name: str(program))
        start = subprocess.Popen

        def watched(*arguments, **options):
            started.append(start(*arguments, **options))
            return started[-1]

        monkeypatch.setattr(module.subprocess, "Popen", watched)
        return started

    return stand_in


def test_one_that_ends_at_once_is_not_waited_for(superlink, tmp_path):
    superlink("import sys; open('superlink.log', 'w').write('port taken'); sys.exit(7)")
    said = pytest.raises(UserError, match="ended at once, with exit code 7: port taken")
    with local_superlink(tmp_path, {}) as wait_until_ready, said:
        wait_until_ready()


def test_one_that_does_not_answer_is_said_and_killed(superlink, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_STARTUP_SECONDS", 3)
    monkeypatch.setattr(module, "_STOP_SECONDS", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    started = superlink(f"{deaf}open('deaf', 'w').close(); time.sleep(60)")
    with local_superlink(tmp_path, {}) as wait_until_ready:
        with pytest.raises(UserError, match=r"did not start within 3 s: $"):
            wait_until_ready()
        assert (tmp_path / "deaf").exists()
    assert started[0].returncode == -9, "it is waited for after it was killed"


def test_it_is_stopped_when_the_command_gets_sigterm(superlink, handlers, tmp_path, monkeypatch):
    started = superlink("import time; time.sleep(60)")

    def command():
        with local_superlink(tmp_path, {}):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cli, "app", command)
    with pytest.raises(KeyboardInterrupt):
        cli.main()
    assert started[0].returncode == -signal.SIGTERM


def test_what_it_started_does_not_stay(superlink, tmp_path):
    child = "s.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)"
    script = f"import subprocess as s, sys, time; left = {child}; "
    superlink(f"{script}open('left.txt', 'w').write(f'{{left.pid}} '); time.sleep(60)")
    note = tmp_path / "left.txt"
    with local_superlink(tmp_path, {}):
        wait_until(lambda: note.exists() and note.read_text(), 20, "child")
    status = Path(f"/proc/{int(note.read_text())}/stat")
    wait_until(lambda: not status.exists() or " Z " in status.read_text(), 10, "end of the child")
