"""Starting a simulation: what it runs with, and the process it runs in.

`fedapp run` checks nothing and imports little itself: it copies the app's packages, because what a
run executes must not change while it runs, and lets `fedapp.simulation` do the rest in a process of
its own. `run_with_superlink` (in `local_superlink.py`) is the longer way of `flwr run`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import Any

from fedapp.cpus import cores
from fedapp.errors import UserError
from fedapp.places import absolute
from fedapp.subprocesses import run_task

_PATH_KEYS = ("data-dir", "output-dir", "state-dir", "resume", "initial-model")
_PATH_VARIABLES = ("FEDAPP_STATE", "FEDAPP_CACHE", "XDG_CACHE_HOME", "TORCH_HOME")
_MLFLOW = "MLFLOW_TRACKING_URI"
_NO_PATHS = {"resume": "auto", "initial-model": "imagenet"}
_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


class Engine(StrEnum):
    """What a run's nodes are; the result is the same, bit for bit."""

    WORKERS = "workers"  # worker processes of the app's own: starts soonest
    RAY = "ray"  # Flower's virtual SuperNodes on Ray workers, of a cluster with RAY_ADDRESS
    SUPERLINK = "superlink"  # the same by `flwr run` and a SuperLink of the run's own
    IN_PROCESS = "in-process"  # plain calls in one process: least memory, many beside each other


@dataclass(frozen=True)
class Resources:
    """What a simulation may use; zeros mean: choose."""

    nodes: int = 0
    workers: int = 0
    gpus: float = -1.0  # per worker

    def resolve(
        self,
        num_clients: int,
        participation: float = 1.0,
        pool: bool = False,
        device: str = "auto",
    ) -> "Resources":
        """Fill in what was left open from the machine's cores, and its GPUs unless `device` is cpu.

        A worker sees the GPU that it shares, and for a device "cuda:N" it sees all of them.

        A node's clients are trained by one worker, in turn. Nodes of a `pool` can host any client,
        so the server shares a round's clients evenly, and one node per worker is best. Else, where
        few clients per worker are drawn, some nodes would get several of them and a worker would
        end up alone with those: more nodes then, so that mostly each has one.
        """
        gpus = len(gpu_names()) if device != "cpu" else 0
        workers = self.workers or (4 * gpus if gpus else cores())
        workers = max(1, min(workers, num_clients))
        few = participation < 1 and participation * num_clients < 8 * workers
        nodes = self.nodes or min(num_clients, (1 if pool else 16 if few else 4) * workers)
        share = self.gpus if self.gpus >= 0 else min(1.0, gpus / workers)
        share = 0.0 if device.startswith("cuda:") else share
        return Resources(nodes, workers, share)

    def options(self) -> str:
        """Return Flower's `--federation-config` for these resources."""
        total = self.total_cpus()
        text = (
            f"num-supernodes={self.nodes} client-resources-num-cpus={self.cpus_per_worker()} "
            f"client-resources-num-gpus={float(self.gpus)}"
        )
        return f"{text} init-args-num-cpus={total}" if total else text

    def cpus_per_worker(self) -> int:
        """Return the CPUs that each worker has for itself: an equal share."""
        return max(1, cores() // self.workers)

    def total_cpus(self) -> int:
        """Return the CPUs that Ray may give away, so that just these workers fit in.

        0 where a Ray cluster runs already (RAY_ADDRESS): it has resources of its own, and says how
        many workers fit in.
        """
        if os.environ.get("RAY_ADDRESS"):
            return 0
        return min(max(cores(), self.workers), self.cpus_per_worker() * self.workers)


def default_engine() -> Engine:
    """Return worker processes, or Ray where a Ray cluster runs (RAY_ADDRESS)."""
    return Engine.RAY if os.environ.get("RAY_ADDRESS") else Engine.WORKERS


def gpu_names() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them.

    The driver is asked: importing torch would take seconds.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA ignores the first name that is none, and all after it
        names = (name.strip() for name in visible.split(","))
        return list(takewhile(lambda name: name not in ("", "-1", "NoDevFiles"), names))
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, check=False)
    found = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(n) for n in range(len(found))] if listed.returncode == 0 else []


def node_config(run_config: Mapping[str, Any]) -> dict[str, str]:
    """Return what virtual nodes are told: they can host any client, unless data are their own."""
    return {} if run_config["partition"] == "own" else {"hosts": "any"}


def default_config(project: Path) -> dict[str, Any]:
    """Read `[tool.flwr.app.config]` of a project; raises UserError when there is none."""
    return _app_table(project, "config")


def _app_table(project: Path, name: str) -> dict[str, Any]:
    """Read `[tool.flwr.app.NAME]` of a project; raises UserError when there is none."""
    file = project / "pyproject.toml"
    try:
        return dict(tomllib.loads(file.read_text())["tool"]["flwr"]["app"][name])
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{file.absolute()} is not TOML: {error}") from None
    except (OSError, KeyError):
        raise UserError(
            f"{file.absolute()} has no [tool.flwr.app.{name}]: run this in the fedapp folder, "
            "or name it with --app"
        ) from None


def merge(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, unchecked; its paths become absolute.

    That of an initial model, which may also lie in the data folder, if it exists from here. An
    empty output-dir is the default one: relative to where the run works it would go with that.
    """
    defaults = default_config(project)
    values = {**defaults, **overrides}
    if values.get("output-dir") == "":
        values["output-dir"] = defaults.get("output-dir") or "runs"
    for key in _PATH_KEYS:
        path = values.get(key)
        if isinstance(path, str) and path and path != _NO_PATHS.get(key):
            place = absolute(path, key)
            if key != "initial-model" or place.exists():
                values[key] = str(place)
    return values


def fuse(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of a run, checked; paths become absolute. Raises UserError."""
    from fedapp.config import RunConfig  # imports torch

    values = merge(project, overrides)
    RunConfig.parse(values)
    return values


def run(
    project: Path,
    overrides: Mapping[str, Any],
    resources: Resources,
    engine: Engine | None = None,
) -> int:
    """Simulate one run to its end on worker processes or Ray, its log on this terminal.

    Returns 0 if it completed, 1 if it failed and 2 if its configuration is wrong; the process it
    runs in ends when this one does, however that happens.
    """
    values = merge(project, overrides)
    task = {"values": values, "resources": asdict(resources), "engine": engine or default_engine()}
    task |= components(project)
    with tempfile.TemporaryDirectory(prefix="fedapp-", ignore_cleanup_errors=True) as home:
        code = copy_app(project, Path(home) / "app")
        environment = environment_for(Path(home), resources)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(code), *filter(None, [environment.get("PYTHONPATH")])]
        )
        # Ray's workers import from the working directory first: no second copy may be there.
        return run_task("fedapp.simulation", task, env=environment, cwd=home)


def copy_app(project: Path, target: Path) -> Path:
    """Copy a project's packages with their compiled modules; returns `target`."""
    packages = [path.parent for path in project.glob("*/__init__.py")]
    for package in packages:
        shutil.copytree(package, target / package.name)
    return target


def components(project: Path) -> dict[str, str]:
    """Return the project's "serverapp" and "clientapp", as module:name. Raises UserError."""
    named = _app_table(project, "components")
    try:
        return {key: str(named[key]) for key in ("serverapp", "clientapp")}
    except KeyError as missing:
        raise UserError(
            f"[tool.flwr.app.components] of {project.absolute()} names no {missing}"
        ) from None


def environment_for(home: Path, resources: Resources | None = None) -> dict[str, str]:
    """Return the environment of Flower's programs: this Python's, with `home` as FLWR_HOME.

    For `resources` with no share of a GPU it shows none. Folders that it names become absolute: the
    programs work in a folder that is removed after them.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if resources and resources.gpus == 0 else {}
    named = {name: os.environ[name] for name in _PATH_VARIABLES if os.environ.get(name)}
    folders = {name: str(absolute(folder, name)) for name, folder in named.items()}
    if address := os.environ.get(_MLFLOW):
        folders[_MLFLOW] = _whole_address(address)
    own = {**_ENVIRONMENT, **hidden, "FLWR_HOME": str(home), "PATH": path}
    return {**os.environ, **folders, **own}


def _whole_address(uri: str) -> str:
    """Return MLflow's address; a folder or an SQLite file that is relative in it becomes whole."""
    database, sqlite, path = uri.rpartition("sqlite:///")
    if not sqlite and (":" in uri or uri.startswith("databricks")):
        return uri
    return f"{database}{sqlite}{absolute(path, _MLFLOW)}"


def program(name: str) -> str:
    """Return the path of a console script of this Python environment."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
