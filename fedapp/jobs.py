"""Starting many runs: one after the other, or several at once in one process each.

A small run on workers of its own leaves most of a machine idle. `run_apart` makes each run one
process with one federation inside, with the same bits: as many train at once as there are cores.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from fedapp import launch
from fedapp.errors import UserError
from fedapp.launch import Resources

Runner = Callable[[Path, Mapping[str, Any], Resources], int]
_started = count()  # runs in processes of their own
T = TypeVar("T")
R = TypeVar("R")


def runner_for(jobs: int) -> Runner:
    """Return how runs are started: on workers, or (jobs above 0) each in one process."""
    if jobs < 0:
        raise UserError(f"--jobs is {jobs} but must be 0 (one after the other, on workers) or more")
    return run_apart if jobs else run_in_sight


def at_once(jobs: int, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Do `work` on up to `jobs` items at a time; gives (item, result) as each gets done."""
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        waiting = {pool.submit(work, item): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_in_sight(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run on worker processes, the output on stderr; returns the exit code."""
    with stdout_to_stderr():
        return launch.run(project, overrides, resources)


def run_apart(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run in one process, apart from this one; returns its exit code.

    Runs take the machine's GPUs in turn. What one prints goes to NAME.log beside the run directory.
    Raises UserError with the sentence in which the run says why it could not start.
    """
    import tomli_w

    folder = Path(str(overrides["output-dir"]))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{overrides['run-name']}.log"
    with tempfile.NamedTemporaryFile("wb", suffix=".toml", delete=False) as file:
        file.write(tomli_w.dumps(dict(overrides)).encode())
    command = [sys.executable, "-m", "fedapp.cli", "run", "--engine", "in-process"]
    command += ["--app", str(project.absolute()), "-c", file.name]
    try:
        with log.open("wb") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, check=False, env=_next_gpu()
            )
    finally:
        os.unlink(file.name)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    if done.returncode and last and last[0].startswith("fedapp: "):
        raise UserError(last[0].removeprefix("fedapp: "))
    return done.returncode


def _next_gpu() -> dict[str, str]:
    """Return this environment, with one of its GPUs if there are several."""
    names = launch.gpu_names()
    own = {"CUDA_VISIBLE_DEVICES": names[next(_started) % len(names)]} if len(names) > 1 else {}
    return {**os.environ, **own}


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what this process and its children print to stderr, so that stdout holds results."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
