"""The example `examples/federation.sh`: a federation by one command, as a reader starts it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from waiting import wait_until

from deployment.federation import ROOT


def free_ports(count: int) -> int:
    """Return the first of `count` neighbouring ports that are free now."""
    for first in range(20_000, 32_000, 50):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + number))
        except OSError:
            continue
        else:
            return first
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


def processes_in(folder: Path) -> Iterator[list[str]]:
    """Return the commands of the processes that the script has started: they work in its folder."""
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if process.info["cwd"] == str(folder):
            yield process.info["cmdline"]


def started(folder: Path, config: str, port: int) -> subprocess.Popen[str]:
    """Start the script as a reader does, with a home of its own."""
    own = Path(sys.executable).parent
    environment = {
        **os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "PORT": str(port),
        "HOME": str(folder.parent), "CONFIG": f"method='fedavg' local-epochs=1 {config}",
    }  # fmt: skip
    environment.pop("FLWR_HOME", None)
    command = ["sh", str(ROOT / "examples" / "federation.sh"), str(folder)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_the_example_trains_on_two_nodes_and_leaves_nothing_running(tmp_path):
    folder = tmp_path / "federation"
    script = started(folder, "num-rounds=2", free_ports(4))
    output, _ = script.communicate(timeout=400)
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*/log"))
    assert script.returncode == 0, output + logs
    summary = json.loads(next(folder.glob("runs/*/summary.json")).read_text())
    assert (summary["status"], summary["rounds"], summary["method"]) == ("completed", 2, "fedavg")
    assert not (tmp_path / ".flwr").exists()
    wait_until(lambda: not list(processes_in(folder)), 30, "the end of all processes")


def test_the_example_stopped_in_a_round_leaves_nothing_running(tmp_path):
    folder, port = tmp_path / "federation", free_ports(4)
    script = started(folder, "num-rounds=1000", port)
    assert script.stdout is not None
    assert any(line.startswith("round  ") for line in script.stdout)
    script.terminate()
    script.communicate(timeout=120)
    assert script.returncode == 1

    def remaining() -> list[list[str]]:
        commands = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
        return [*processes_in(folder), *(c for c in commands if f"127.0.0.1:{port}" in c)]

    wait_until(lambda: not remaining(), 60, "the end of all processes")
