"""`run`: one training run from Python, on the engines of the command."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch

from fedapp.config.installed_app import find_app
from fedapp.config.overrides import read_overrides
from fedapp.config.resolve import load_run_config
from fedapp.core.errors import UserError
from fedapp.engines import launch
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Engine, Resources
from fedapp.engines.subprocesses import COMPLETED, INTERRUPTED
from fedapp.interface.keys import by_key
from fedapp.interface.notebook import Log, logged, pipe_to
from fedapp.interface.runs import Run
from fedapp.results.folders import unnamed
from fedapp.results.run_directory import RunDirectory

Preset = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None


class RunFailed(UserError):  # noqa: N818
    """A run began and did not complete; the message states the reason."""

    def __init__(self, sentence: str, run: Run) -> None:
        """Set the message and the run, whose directory has its files."""
        super().__init__(sentence)
        self.run = run


def run(
    preset: Preset = None,
    *,
    engine: str | None = None,
    workers: int = 0,
    nodes: int = 0,
    gpus: float = -1.0,
    **keys: Any,
) -> Run:
    """Train one federation, with the log in this cell or terminal, and return the run.

    An interruption ends the run properly and raises KeyboardInterrupt; its directory remains.

    Args:
        preset: a value of the command's `-c`: the name of a preset, a TOML file, or several.
        engine: "workers" (processes of this machine), "ray" or "in-process"; None: workers, or ray
            if RAY_ADDRESS is set. The result is the same, bit for bit.
        workers: worker processes; 0: one per core, or four per GPU.
        nodes: virtual SuperNodes; 0: one per worker.
        gpus: share of a GPU per worker; -1: all GPUs, shared by the workers.
        keys: run-config keys with underscores, which override the preset: `num_rounds=5`,
            `method="fedntd"`. `fedapp config` lists them.

    Raises:
        UserError: a key or a value is wrong, or data are missing; nothing was trained.
        RunFailed: the run began and failed; its `run` has the rounds until then.
    """
    chosen, resources = find_engine(engine), find_resources(nodes, workers, gpus)
    app = find_app()
    values = load_run_config(app, read_keys(preset, keys))
    with _directory(values) as path, logged() as log:
        directory = RunDirectory(path)
        before = _opened_at(directory)
        code = train(app, values, resources, chosen, log, list(by_key(keys)))
    if code == COMPLETED:
        return Run(directory)
    sentence = log.mistake or f"the run ended with exit code {code} before it was completed"
    if _opened_at(directory) == before:
        raise UserError(sentence)
    raise RunFailed(sentence, Run(directory))


def train(
    app: Path,
    values: Mapping[str, Any],
    resources: Resources,
    engine: Engine | None,
    log: Log,
    typed: Sequence[str] = (),
) -> int:
    """Run one training with its output in `log`; return the exit code.

    Of the keys in `typed`, the log names those without effect. Raises KeyboardInterrupt if the run
    was interrupted.
    """
    if engine == Engine.IN_PROCESS:
        threads = torch.get_num_threads()
        try:
            return run_in_process(app, values, resources, typed)
        finally:
            torch.set_num_threads(threads)  # the run may have changed the notebook's number
    with pipe_to(log) as output:
        code = launch.run(app, values, resources, engine, output, typed)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def find_engine(name: str | None) -> Engine | None:
    """Return the engine of a name; raises UserError if there is none."""
    if name is None or name in list(Engine):
        return None if name is None else Engine(name)
    raise UserError(f"engine is {name!r} but must be one of {', '.join(Engine)}")


def find_resources(nodes: int, workers: int, gpus: float) -> Resources:
    """Return the resources of a run; raises UserError for a wrong number."""
    whole = ("nodes", nodes, 0, Integral), ("workers", workers, 0, Integral)
    for name, value, least, kind in (*whole, ("gpus", gpus, -1, Real)):
        if not isinstance(value, kind) or not least <= value < math.inf:
            what = "a whole number" if kind is Integral else "a number"
            raise UserError(f"{name} is {value!r} but must be {what}: {least} (choose) or more")
    return Resources(nodes, workers, gpus)


def read_keys(preset: Preset, keys: Mapping[str, Any], more: bool = False) -> dict[str, Any]:
    """Return the requested configuration, with kebab-case keys, unchecked.

    `more` announces further keys, for `read_overrides`.

    Raises:
        UserError: a preset or a file that cannot be read.
    """
    overrides = read_overrides(preset_texts(preset), more=more or bool(keys))
    return {**overrides, **by_key(keys)}


def preset_texts(preset: Preset) -> list[str]:
    """Return a preset, or several, as values of the command's `-c`."""
    several = [] if preset is None else preset
    return [str(p) for p in ([several] if isinstance(several, str | os.PathLike) else several)]


@contextmanager
def _directory(values: dict[str, Any]) -> Iterator[Path]:
    """Yield the run's directory; for an unnamed run create a folder and set `values["run-name"]`.

    The caller then knows where the run's process writes. If no folder can be created, the run
    reports the reason. A folder without a begun run is removed afterwards.
    """
    if values["resume"] not in ("", "auto"):
        yield Path(values["resume"]).resolve()
        return
    parent = Path(values["output-dir"]).resolve()
    if values["run-name"] or values["resume"]:
        yield parent / values["run-name"]
        return
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
        values["run-name"] = unnamed(parent, values).name
    try:
        yield parent / values["run-name"]
    finally:
        if values["run-name"]:
            with suppress(OSError):
                (parent / values["run-name"]).rmdir()


def _opened_at(directory: RunDirectory) -> int:
    """Return the time when a run last opened its directory, in nanoseconds; 0: never."""
    file = directory.path / "config.toml"
    return file.stat().st_mtime_ns if file.is_file() else 0
