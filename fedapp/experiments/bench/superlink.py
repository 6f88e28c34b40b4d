"""`flwr run` and what it needs around it, from start to end: what a user of it waits for.

Plain `flwr run` leaves a local SuperLink behind that keeps the environment, code path and working
directory of its first run, on a fixed port, and by default installs the app's dependencies anew for
every run. Here each run has a SuperLink of its own, on a free port, with a FLWR_HOME of its own,
checks its configuration before anything starts, and returns the run's verdict as its exit code.
"""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from fedapp.config.resolve import load_run_config
from fedapp.core.errors import UserError
from fedapp.engines.launch import environment_for, program
from fedapp.engines.resources import Resources

_STARTUP_SECONDS = 60
_STOP_SECONDS = 20


def run_with_superlink(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run `flwr run` to its end, its log on this terminal; returns 0 if the run completed."""
    with tempfile.TemporaryDirectory(prefix="fedapp-", ignore_cleanup_errors=True) as home:
        environment = environment_for(Path(home), resources)
        settings = Path(home) / "run.toml"
        with local_superlink(Path(home), environment) as wait_until_ready:
            values = load_run_config(project, overrides)
            settings.write_text(_toml(values))
            resources = resources.resolve(
                int(values["num-clients"]), float(values["participation"]), device=values["device"]
            )
            wait_until_ready()
            return flower_run(project, settings, resources, environment)


def flower_run(
    project: Path, settings: Path, resources: Resources, environment: Mapping[str, str]
) -> int:
    """Run a Flower app on the SuperLink named "local"; returns 0 if it completed."""
    command = ["run", str(project), "local", "-c", str(settings), "--stream"]
    command += ["--federation-config", resources.options()]
    subprocess.run([program("flwr"), *command], env=dict(environment), check=False)
    return 0 if _completed(environment) else 1


@contextmanager
def local_superlink(home: Path, environment: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Start a SuperLink for simulations on a free port, and stop it and all that it started after.

    Yields a function that waits until it answers and raises UserError if it does not; `home` then
    has a connection named "local" to it.
    """
    port = free_port()
    address = f"127.0.0.1:{port}"
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "local"\n'
        f'[superlink.local]\naddress = "{address}"\ninsecure = true\n'
    )
    command = [
        program("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1",
        "--port", str(port), "--log-file", str(home / "superlink.log"),
    ]  # fmt: skip
    # Ray's workers import from the working directory first: there must be no second copy of the app
    # there, which an edit during a run would make different from the one that the server runs.
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C ends it here, after a look at what it has started
    )
    try:
        yield lambda: _wait_for(f"http://{address}/health", process, home / "superlink.log")
    finally:
        leaders = _children(process.pid)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for leader in leaders:
            with suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Return the processes that one has started: the SuperLink's lead groups of their own.

    They would train to the run's end without it.
    """
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def free_port() -> int:
    """Return a TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _STARTUP_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    tail = "\n".join(log.read_text().splitlines()[-5:]) if log.exists() else ""
    code = process.poll()
    slow = f"did not start within {_STARTUP_SECONDS} s"
    how = slow if code is None else f"ended at once, with exit code {code}"
    raise UserError(f"the local SuperLink {how}: {tail}")


def _completed(environment: Mapping[str, str]) -> bool:
    """Ask the SuperLink whether its run, there is only one, completed."""
    listed = subprocess.run(
        [program("flwr"), "ls", "local", "--format", "json"],
        env=dict(environment), capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        runs = json.loads(listed.stdout)["runs"]
    except (json.JSONDecodeError, KeyError):
        return False
    return bool(runs) and runs[0]["status"] == "finished:completed"


def _toml(values: Mapping[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(dict(values))
