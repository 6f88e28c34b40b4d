"""`flwr run` with its own SuperLink, for the time that a user of it waits.

Plain `flwr run` leaves a local SuperLink running, on a fixed port, with the environment, code path
and working directory of its first run. By default it installs the app's dependencies again for
every run. Here each run has its own SuperLink, on a free port and with its own FLWR_HOME. The
configuration is checked before the run starts, and the exit code tells whether the run completed.
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
    """Execute `flwr run` with its log on this terminal; return 0 if the run completed."""
    with tempfile.TemporaryDirectory(prefix="fedapp-", ignore_cleanup_errors=True) as home:
        environment = environment_for(Path(home), resources) | {"FEDAPP_HOSTS": "any"}
        settings = Path(home) / "run.toml"
        with local_superlink(Path(home), environment) as wait_until_ready:
            values = load_run_config(project, overrides)
            settings.write_text(_toml(values))
            wait_until_ready()
            return flower_run(project, settings, resources.resolve_for(values), environment)


def flower_run(
    project: Path, settings: Path, resources: Resources, environment: Mapping[str, str]
) -> int:
    """Run a Flower app on the SuperLink named "local"; return 0 if it completed."""
    command = ["run", str(project), "local", "-c", str(settings), "--stream"]
    command += ["--federation-config", resources.options()]
    subprocess.run([program("flwr"), *command], env=dict(environment), check=False)
    return 0 if _completed(environment) else 1


@contextmanager
def local_superlink(home: Path, environment: Mapping[str, str]) -> Iterator[Callable[[], None]]:
    """Start a SuperLink for simulations on a free port; stop it and its processes afterwards.

    Yields a function that waits until the SuperLink answers, and raises UserError if it does not.
    `home` gets the configuration of a connection named "local".
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
    # Ray's workers import from the working directory first. It must not contain a second copy of
    # the app, which could differ from the server's copy after an edit during a run.
    process = subprocess.Popen(
        command,
        env=dict(environment),
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C does not reach it; this process ends it and its children
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
    """Return a process's children; the SuperLink's children lead their own process groups.

    They would otherwise train to the run's end without it.
    """
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
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
    timeout = f"did not start within {_STARTUP_SECONDS} s"
    problem = timeout if code is None else f"ended at once, with exit code {code}"
    raise UserError(f"the local SuperLink {problem}: {tail}")


def _completed(environment: Mapping[str, str]) -> bool:
    """Query the SuperLink whether its only run completed."""
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
