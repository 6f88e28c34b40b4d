"""Start many runs: one after the other, or several simultaneously with one process each.

A small run on its own workers leaves most of a machine idle. `run_in_subprocess` executes a run in
one process, with the same bits, so that as many runs as cores can train simultaneously.
"""

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from fedapp.config.project import merge
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
    watch_parent,
)

log = logging.getLogger(__name__)
Runner = Callable[[Path, Mapping[str, Any], Resources], int]
STOPPED = "interrupted"  # what a run's verdict is after Ctrl-C or a signal
IN_LOG, IN_TERMINAL = "see its log", "its last lines in this terminal say why"
_running: Counter[str] = Counter()  # runs in processes of their own, by GPU
_choosing = threading.Lock()
T = TypeVar("T")
R = TypeVar("R")


def runner_for(jobs: int) -> Runner:
    """Return the function that executes a run: on workers, or (jobs above 0) in one process."""
    if jobs < 0:
        raise UserError(f"--jobs is {jobs} but must be 0 (one after the other, on workers) or more")
    return run_in_subprocess if jobs else run_attached


def run_parallel(jobs: int, work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Call `work` on up to `jobs` items at a time; yield (item, result) as each is finished.

    If this process is interrupted, or the generator is closed, the processes of `work` also end.
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
                time.sleep(0.1)  # a thread may be starting another process
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def run_reported(
    jobs: int, run: Callable[[T], str], items: Sequence[T], name: Callable[[T], str]
) -> Iterator[tuple[T, str]]:
    """As `run_parallel` of `run`, which returns what went wrong, or ""; log starts and verdicts.

    A run that was interrupted (`STOPPED`) has not failed. With one job a run's verdict is logged
    before the next one starts.
    """
    ended = count(1)

    def reported(item: T) -> str:
        log.info("%s starts", name(item))
        problem = run(item)
        verdict = f"failed: {problem}" if problem not in ("", STOPPED) else problem or "completed"
        log.info("[%d/%d] %s %s", next(ended), len(items), name(item), verdict)
        return problem

    return run_parallel(jobs, reported, items)


def problem_of(run: Callable[[], int], reason: str = IN_LOG) -> str:
    """Return why a run did not complete, `STOPPED`, or "".

    `run` returns its exit code; `reason` tells where to find out why it is not 0.
    """
    try:
        code = run()
    except (UserError, OSError) as error:
        return str(error)
    if code == INTERRUPTED:
        return STOPPED
    return f"it ended with exit code {code} before it was completed: {reason}" if code else ""


def run_attached(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run on worker processes, with the output on stderr; return the exit code.

    An interrupted run interrupts this process too, so that no further run starts.
    """
    with stdout_to_stderr():
        code = launch.run(project, overrides, resources)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code


def run_in_subprocess(project: Path, overrides: Mapping[str, Any], resources: Resources) -> int:
    """Run in one separate process; return its exit code.

    Runs use the machine's GPUs in turn, unless `device` names one. The output is written to
    NAME.log beside the run directory. Raises UserError with the run's own error sentence if it
    could not start.
    """
    folder = Path(str(overrides["output-dir"]))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{overrides['run-name']}.log"
    task = {"project": str(project.absolute()), "overrides": dict(overrides)}
    device = str(merge(project, overrides).get("device", ""))
    # another process may run it, and write the log too
    with log.open("ab") as output, _environment(device) as environment:
        options = {"stdout": output, "stderr": subprocess.STDOUT, "env": environment}
        code = run_task("fedapp.experiments.jobs", task, **options)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    if code and last and last[0].startswith("fedapp: "):
        raise UserError(last[0].removeprefix("fedapp: "))
    return code


@contextmanager
def _environment(device: str) -> Iterator[dict[str, str]]:
    """Yield this environment for a run, with one of several GPUs unless `device` names one.

    It is the GPU with the fewest such runs.
    """
    names = gpu_names()
    if len(names) < 2 or device.startswith("cuda:"):
        yield dict(os.environ)
        return
    with _choosing:
        name = min(names, key=_running.__getitem__)
        _running[name] += 1
    try:
        yield {**os.environ, "CUDA_VISIBLE_DEVICES": name}
    finally:
        with _choosing:
            _running[name] -= 1


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect the output of this process and its children to stderr; stdout is for results."""
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
    """Execute the task of `run_in_subprocess`."""
    install_signal_handlers()
    task = take_task()
    watch_parent()
    try:
        from fedapp.engines.in_process import run_in_process  # imports torch

        code = run_in_process(Path(task["project"]), task["overrides"], Resources())
    except UserError as error:
        print(f"fedapp: {error}", flush=True)
        code = MISTAKE
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
