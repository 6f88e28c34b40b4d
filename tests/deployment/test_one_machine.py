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


def test_the_example_trains_on_two_nodes_and_leaves_nothing_running(tmp_path):
    own = Path(sys.executable).parent
    environment = {
        **os.environ, "PATH": f"{own}{os.pathsep}{os.environ['PATH']}", "PORT": str(free_ports(4)),
        "HOME": str(tmp_path), "CONFIG": "method='fedavg' num-rounds=2 local-epochs=1",
    }  # fmt: skip
    environment.pop("FLWR_HOME", None)
    folder = tmp_path / "federation"
    command = ["sh", str(ROOT / "examples" / "federation.sh"), str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*/log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    summary = json.loads(next(folder.glob("runs/*/summary.json")).read_text())
    assert (summary["status"], summary["rounds"], summary["method"]) == ("completed", 2, "fedavg")
    assert not (tmp_path / ".flwr").exists()
    wait_until(lambda: not list(processes_in(folder)), 30, "the end of all processes")
