"""`fedapp run`: `flwr run .` with what it needs around it, started before and stopped after.

Plain `flwr run` leaves a local SuperLink behind that keeps the environment, code path and working
directory of its first run, on a fixed port, and by default installs the app's dependencies anew for
every run. Here each run has a SuperLink of its own, on a free port, with a FLWR_HOME of its own,
checks its configuration before anything starts, and returns the run's verdict as its exit code.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from fedapp.errors import UserError
from fedapp.preset_files import preset_path

_STARTUP_SECONDS = 60
_PATH_KEYS = ("data-dir", "output-dir", "resume")
_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@dataclass(frozen=True)
class Resources:
    """What a simulation may use; zeros mean: choose."""

    nodes: int = 0
    workers: int = 0
    gpus: float = -1.0  # per worker

    def resolve(self, num_clients: int, participation: float = 1.0) -> "Resources":
        """Fill in what was left open from the machine's cores and GPUs.

        A node's clients are trained by one worker, in turn. Where few clients per worker are drawn,
        some nodes would get several of them and a worker would end up alone with those: more nodes
        then, so that mostly each has one.
        """
        gpus = count_gpus()
        workers = self.workers or (4 * gpus if gpus else cores())
        workers = max(1, min(workers, num_clients))
        few = participation < 1 and participation * num_clients < 8 * workers
        nodes = self.nodes or min(num_clients, (16 if few else 4) * workers)
        share = self.gpus if self.gpus >= 0 else min(1.0, gpus / workers)
        return Resources(nodes, workers, share)

    def options(self) -> str:
        """Return Flower's `--federation-config` for these resources.

        A Ray cluster that runs already (RAY_ADDRESS) has resources of its own, and says how many
        workers fit in.
        """
        per_worker = max(1, cores() // self.workers)
        options = (
            f"num-supernodes={self.nodes} client-resources-num-cpus={per_worker} "
            f"client-resources-num-gpus={float(self.gpus)}"
        )
        if os.environ.get("RAY_ADDRESS"):
            return options
        total = max(cores(), self.workers)
        return f"{options} init-args-num-cpus={min(total, per_worker * self.workers)}"


def cores() -> int:
    """Return the CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_gpus() -> int:
    """Return the number of NVIDIA GPUs, asked of the driver: importing torch would take seconds."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return len([d for d in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if d.strip()])
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


def default_config(project: Path) -> dict[str, Any]:
    """Read `[tool.flwr.app.config]` of a project; raises UserError when there is none."""
    file = project / "pyproject.toml"
    try:
        return dict(tomllib.loads(file.read_text())["tool"]["flwr"]["app"]["config"])
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        raise UserError(
            f"{file.absolute()} has no [tool.flwr.app.config]: run this in the fedapp folder, "
            "or name it with --app"
        ) from None


def read_overrides(texts: list[str]) -> dict[str, Any]:
    """Read `-c` arguments, later ones winning.

    Each is the name of a preset, a TOML file, or a string "key=value key2='text'".
    """
    from flwr.common.config import parse_config_args

    overrides: dict[str, Any] = {}
    for text in texts:
        preset = preset_path(text)
        if not preset and not text.endswith(".toml") and "=" not in text:
            raise UserError(
                f"-c {text!r} is neither a preset (see `fedapp presets`) nor a .toml file nor "
                "key=value pairs"
            )
        try:
            overrides |= parse_config_args([str(preset or text)])
        except OSError as error:
            raise UserError(f"preset {text} cannot be read: {error.strerror}") from None
        except Exception as error:
            raise UserError(
                f"-c {text!r} is not TOML key=value pairs or a TOML file: {error}"
            ) from None
    return overrides


def fuse(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, checked; paths become absolute. Raises UserError."""
    from fedapp.config import RunConfig  # imports torch, while a SuperLink is starting

    values = {**default_config(project), **overrides}
    RunConfig.parse(values)
    for key in _PATH_KEYS:
        if values[key] and not (key == "resume" and values[key] == "auto"):
            values[key] = str(Path(values[key]).expanduser().absolute())
    return values


def run(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run one simulation to its end, its log on this terminal; returns 0 if it completed."""
    with tempfile.TemporaryDirectory(prefix="fedapp-", ignore_cleanup_errors=True) as home:
        environment = environment_for(Path(home))
        settings = Path(home) / "run.toml"
        with local_superlink(Path(home), environment) as wait_until_ready:
            values = fuse(project, overrides)
            settings.write_text(_toml(values))
            resources = resources.resolve(
                int(values["num-clients"]), float(values["participation"])
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
    """Start a SuperLink for simulations on a free port, and stop it after.

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
    )
    try:
        yield lambda: _wait_for(f"http://{address}/health", process, home / "superlink.log")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def environment_for(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: this Python's, with `home` as FLWR_HOME."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **_ENVIRONMENT, "FLWR_HOME": str(home), "PATH": path}


def program(name: str) -> str:
    """Return the path of a console script of this Python environment."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def free_port() -> int:
    """Return a TCP port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _STARTUP_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urlopen(url, timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    tail = "\n".join(log.read_text().splitlines()[-5:]) if log.exists() else ""
    raise UserError(f"the local SuperLink did not start within {_STARTUP_SECONDS} s: {tail}")


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
