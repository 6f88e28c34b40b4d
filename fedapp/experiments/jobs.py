"""Starting many runs: one after the other, or several at once in one process each.

A small run on workers of its own leaves most of a machine idle. `run_in_subprocess` makes each run
one process with one federation inside, with the same bits: as many train at once as there are
cores.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from fedapp.core.errors import UserError
from fedapp.core.hardware import gpu_names
from fedapp.engines import launch
from fedapp.engines.resources import Resources
from fedapp.engines.subprocesses import (
    INTERRUPTED,
    MISTAKE,
    end_tasks,
    install_signal_handlers,
    run_task,
    take_task,
)

Runner = Callable[[Path, Mapping[str, Any], Resources], int]
_started = count()  # runs in processes of their own
T = TypeVar("T")
R = TypeVar("R")


def runner_for(jobs: int) -> Runner:
    """Return how runs are started: on workers, or (jobs above 0) each in one process."""
    if jobs < 0:
        raise UserError(f"--jobs is {jobs} but must be 0 (one after the other, on workers) or more")
    return run_in_subprocess if jobs else run_attached


def at_once(jobs: int, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Do `work` on up to `jobs` items at a time; gives (item, result) as each gets done.

    Where this process is interrupted, or nobody takes the results, those that work for it end too.
    """
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        waiting = {pool.submit(work, item): item for item in items}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in waiting):
                end_tasks()
                time.sleep(0.1)  # a thread may just be starting another
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_attached(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run on worker processes, the output on stderr; returns the exit code.

    A run that was interrupted interrupts this process too: no other is to follow it.
    """
    with stdout_to_stderr():
        code = launch.run(project, overrides, resources)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def run_in_subprocess(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run in one process, apart from this one; returns its exit code.

    Runs take the machine's GPUs in turn. What one prints goes to NAME.log beside the run directory.
    Raises UserError with the sentence in which the run says why it could not start.
    """
    folder = Path(str(overrides["output-dir"]))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{overrides['run-name']}.log"
    task = {"project": str(project.absolute()), "overrides": dict(overrides)}
    with log.open("wb") as output:
        where = {"stdout": output, "stderr": subprocess.STDOUT, "env": _next_gpu()}
        code = run_task("fedapp.experiments.jobs", task, **where)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    if code and last and last[0].startswith("fedapp: "):
        raise UserError(last[0].removeprefix("fedapp: "))
    return code


def _next_gpu() -> dict[str, str]:
    """Return this environment, with one of its GPUs if there are several."""
    names = gpu_names()
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


def main() -> None:
    """Do the one run that `run_in_subprocess` gives this process."""
    install_signal_handlers()
    task = take_task()
    try:
        from fedapp.engines.in_process import run_in_process  # imports torch

        code = run_in_process(Path(task["project"]), task["overrides"], Resources())
    except UserError as mistake:
        print(f"fedapp: {mistake}", flush=True)
        code = MISTAKE
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
