"""`.ci/setup.sh` with a stand-in for Python, pip and uv: what runs when, and what a failure says.

The real set-up takes gigabytes; its decisions (skip, repeat, start again, explain) take none.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UV_LOCK = "uv==0.9.0 \\\n    --hash=sha256:bb\n    # via flwr\n"
LOCK = f"torch==2.11.0 \\\n    --hash=sha256:aa\n{UV_LOCK}zipp==3.0 \\\n    --hash=sha256:cc\n"
ALL_STEPS = ["venv", "pip install uv", "uv lock", "uv project"]
# Stands for the interpreter and, copied into .venv/bin, for its python, pip and uv. It writes what
# it was asked to do into `calls`, and fails at the step named in $BREAK.
STAND_IN = """#!/bin/sh
# $(pwd)/.venv/bin/python
finish() {
    echo "$1" >>calls
    [ "$BREAK" != "$1" ] && return
    echo "error: no route to the index" >&2
    exit 3
}
case "$*" in
    -c*version_info*) cat "$(dirname "$0")/version" ;;
    -c*_base_executable*) echo "$0" ;;
    *"-m venv"*)
        finish venv
        mkdir -p .venv/bin
        for name in python uv; do cp "$0" .venv/bin/$name; done
        sed "2s|.*|# $(pwd)/.venv/bin/python|" "$0" >.venv/bin/pip
        cp "$(dirname "$0")/version" .venv/bin/version ;;
    *"-m pip install --require-hashes"*) cp .venv/uv.lock uv.lock.seen && finish "pip install uv" ;;
    *"--require-hashes -r requirements.lock") finish "uv lock" ;;
    *"--no-deps -e .") finish "uv project" ;;
    *) echo "unexpected: $0 $*" >&2; exit 9 ;;
esac
"""


class Tree:
    """A small project with the real set-up script and a stand-in interpreter of some version."""

    def __init__(self, root: Path, bin_folder: Path) -> None:
        self.root, self.bin = root, bin_folder
        (root / ".ci").mkdir(parents=True)
        shutil.copy(ROOT / ".ci/setup.sh", root / ".ci/setup.sh")
        (root / "requirements.lock").write_text(LOCK)
        (root / "pyproject.toml").write_text("[project]\n")
        bin_folder.mkdir()
        self.python("3.12.4")

    def python(self, version: str) -> None:
        (self.bin / "python3").write_text(STAND_IN)
        (self.bin / "python3").chmod(0o755)
        (self.bin / "version").write_text(version + "\n")

    def set_up(self, **extra: str) -> subprocess.CompletedProcess:
        (self.root / "calls").unlink(missing_ok=True)
        environment = {"PATH": str(self.bin), "BREAK": "", **extra}
        return subprocess.run(
            ["sh", str(self.root / ".ci/setup.sh")],
            env=environment,
            executable=shutil.which("sh"),
            capture_output=True,
            text=True,
        )

    def calls(self) -> list[str]:
        calls = self.root / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def tree(tmp_path) -> Tree:
    made = Tree(tmp_path / "a project", tmp_path / "bin")
    tools = "sh cat cksum cp dirname grep head mkdir rm sed tail awk"
    for name in tools.split():  # a PATH without any other Python
        (made.bin / name).symlink_to(shutil.which(name))
    return made


def test_the_first_call_takes_all_steps_and_the_second_none(tree):
    first = tree.set_up()
    assert (first.returncode, tree.calls()) == (0, ALL_STEPS), first.stderr
    second = tree.set_up()
    assert (second.returncode, second.stdout, second.stderr, tree.calls()) == (0, "", "", [])


def test_uv_is_installed_at_the_version_and_hash_of_the_lock_file(tree):
    tree.set_up()
    assert (tree.root / "uv.lock.seen").read_text() == UV_LOCK


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", ".ci/setup.sh"])
def test_a_changed_file_is_installed_into_the_same_environment(tree, name):
    tree.set_up()
    with (tree.root / name).open("a") as file:
        file.write("# changed\n")
    assert tree.set_up().returncode == 0
    assert tree.calls() == ALL_STEPS[1:]


@pytest.mark.parametrize(
    ("call", "number", "title"),
    [
        ("venv", 1, "create .venv with Python 3.12.4"),
        ("pip install uv", 2, "install uv"),
        ("uv lock", 3, "install the locked packages"),
        ("uv project", 4, "install the project"),
    ],
)
def test_a_failure_names_its_step_and_the_next_call_starts_again(tree, call, number, title):
    failed = tree.set_up(BREAK=call)
    assert failed.returncode == 1
    assert f"set-up failed at step {number}/4 '{title}' (exit status 3):" in failed.stderr
    assert "    error: no route to the index\n" in failed.stderr
    assert tree.set_up().returncode == 0
    assert tree.calls() == ALL_STEPS


def test_an_interrupted_set_up_starts_again(tree):
    tree.set_up()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tree.root / ".venv/set-up-state").write_text(f"unfinished {ended.pid}\n")
    (tree.root / ".venv/bin/half-written").touch()
    assert tree.set_up().returncode == 0
    assert tree.calls() == ALL_STEPS
    assert not (tree.root / ".venv/bin/half-written").exists()


def test_a_set_up_at_work_is_left_alone(tree):
    tree.set_up()
    (tree.root / ".venv/set-up-state").write_text(f"unfinished {os.getpid()}\n")
    refused = tree.set_up()
    assert (refused.returncode, tree.calls()) == (1, [])
    assert f"another set-up (process {os.getpid()}) is at work on .venv" in refused.stderr


def test_a_moved_project_gets_a_new_environment(tree, tmp_path):
    tree.set_up()
    tree.root = tree.root.rename(tmp_path / "elsewhere")
    assert tree.set_up().returncode == 0
    assert tree.calls() == ALL_STEPS


def test_another_python_replaces_the_environment_only_when_it_is_asked_for(tree):
    tree.set_up()
    tree.python("3.13.0")
    assert (tree.set_up().returncode, tree.calls()) == (0, [])
    assert (tree.set_up(PYTHON="python3").returncode, tree.calls()) == (0, ALL_STEPS)
    assert (tree.set_up(PYTHON="python3").returncode, tree.calls()) == (0, [])


def test_an_environment_made_by_hand_is_completed_not_removed(tree):
    tree.set_up()
    (tree.root / ".venv/set-up-state").unlink()
    assert tree.set_up().returncode == 0
    assert tree.calls() == ALL_STEPS[1:]


@pytest.mark.parametrize("version", ["3.10.14", "3.14.0", "2.7.18"])
def test_an_unsupported_python_is_refused_by_name(tree, version):
    tree.python(version)
    refused = tree.set_up()
    assert (refused.returncode, tree.calls()) == (1, [])
    assert f"needs Python 3.11, 3.12 or 3.13 and found none on the PATH, python3 is {version}" in (
        refused.stderr
    )


def test_a_python_that_does_not_run_is_refused_by_name(tree):
    refused = tree.set_up(PYTHON="/nowhere/python")
    assert refused.returncode == 1
    assert "PYTHON=/nowhere/python is not a Python that runs" in refused.stderr
