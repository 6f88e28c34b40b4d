"""Start a simulation in a process of its own.

`fedapp run` itself checks nothing and imports little. It copies the app's packages, because a run's
code must not change during the run, and starts `fedapp.engines.simulation` in its own process.
"""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedapp.config.project import components, merge
from fedapp.core.errors import UserError
from fedapp.core.paths import absolute
from fedapp.engines.resources import Engine, Resources, default_engine
from fedapp.engines.subprocesses import FAILED, run_task

_PATH_VARIABLES = ("FEDAPP_STATE", "FEDAPP_CACHE", "XDG_CACHE_HOME", "TORCH_HOME")
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))  # what the system says of a disk
_MLFLOW = "MLFLOW_TRACKING_URI"
_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


def run(
    project: Path,
    overrides: Mapping[str, Any],
    resources: Resources,
    engine: Engine | None = None,
    output: int | None = None,
    typed: Sequence[str] = (),
) -> int:
    """Simulate one run on worker processes or Ray.

    Of the keys in `typed`, the log names those without effect.
    The log is written to this terminal, or to the file descriptor `output`. Returns 0 if the run
    completed, 1 if it failed and 2 if its configuration is wrong. The run's process also ends if
    this process ends or crashes.
    """
    values = merge(project, overrides)
    task = {"values": values, "resources": asdict(resources), "engine": engine or default_engine()}
    task["typed"] = list(typed)
    task |= components(project)
    with tempfile.TemporaryDirectory(prefix="fedapp-", ignore_cleanup_errors=True) as home:
        code = copy_app(project, Path(home) / "app")
        environment = environment_for(Path(home), resources)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(code), *_search_path(environment.get("PYTHONPATH", ""))]
        )
        # The working directory must contain no second copy, because Ray's workers import from it
        # first.
        streams = {} if output is None else {"stdout": output, "stderr": subprocess.STDOUT}
        ended = run_task("fedapp.engines.simulation", task, env=environment, cwd=home, **streams)
    if ended >= 0:
        return ended
    os.write(2 if output is None else output, f"fedapp: {_killed(-ended)}\n".encode())
    return FAILED


def _killed(by: int) -> str:
    return (
        f"the run's process was killed by signal {by} ({signal.Signals(by).name}), perhaps because "
        "the machine had no memory left: take fewer workers (--workers) or a smaller batch-size; "
        "with resume='auto' the run goes on from its last checkpoint"
    )


def _search_path(text: str) -> list[str]:
    """Return the folders of a PYTHONPATH as absolute paths, because the run's folder differs."""
    return [str(Path(folder).absolute()) for folder in text.split(os.pathsep) if folder]


def copy_app(project: Path, target: Path) -> Path:
    """Copy a project's packages with their compiled modules; return `target`.

    Raises:
        UserError: the temporary folder is full, or a file cannot be copied.
    """
    packages = [path.parent for path in project.glob("*/__init__.py")]
    # another process may be about to rename a module that it has compiled
    ignored = shutil.ignore_patterns("*.pyc.*")
    try:
        for package in packages:
            shutil.copytree(package, target / package.name, ignore=ignored)
    except OSError as error:
        raise UserError(_not_copied(project, target, error)) from None
    return target


def _not_copied(project: Path, target: Path, error: OSError) -> str:
    """Return the sentence for an error of the copy; a `shutil.Error` lists one per file."""
    if full := [reason for reason in _FULL if reason in str(error)]:
        return (
            f"the temporary folder {tempfile.gettempdir()} has no space for a copy of the app "
            f"({full[0]}); make room in it, or let TMPDIR name another folder"
        )
    reason = error.args[0][0][2] if isinstance(error, shutil.Error) else error
    return f"the app in {project.absolute()} cannot be copied to {target}: {reason}"


def environment_for(home: Path, resources: Resources | None = None) -> dict[str, str]:
    """Return the environment for Flower's programs: this Python's, with `home` as FLWR_HOME.

    It hides all GPUs if `resources` has no share of one. Paths in variables become absolute,
    because the programs work in a temporary folder.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if resources and resources.gpus == 0 else {}
    named = {name: os.environ[name] for name in _PATH_VARIABLES if os.environ.get(name)}
    folders = {name: str(absolute(folder, name)) for name, folder in named.items()}
    if address := os.environ.get(_MLFLOW):
        folders[_MLFLOW] = _absolute_address(address)
    own = {**_ENVIRONMENT, **hidden, "FLWR_HOME": str(home), "PATH": path}
    return {**os.environ, **folders, **own}


def _absolute_address(uri: str) -> str:
    """Return MLflow's address; a relative folder or SQLite file in it becomes absolute."""
    database, sqlite, path = uri.rpartition("sqlite:///")
    if not sqlite and (":" in uri or uri.startswith("databricks")):
        return uri
    return f"{database}{sqlite}{absolute(path, _MLFLOW)}"


def program(name: str) -> str:
    """Return the path of a console script of this Python environment."""
    script = Path(sys.executable).parent / name
    return str(script) if script.exists() else name
