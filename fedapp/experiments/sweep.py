"""`fedapp sweep`: one run per combination of values and seed.

Tables of results need many runs. Some of them may fail, or the user may interrupt the sweep.
Therefore all runs are checked before the first starts, each run is named after its varied values, a
failed run does not stop the others, and the same command continues an interrupted sweep.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedapp.config.effect import without_effect as no_effect
from fedapp.config.resolve import load_run_config, parse_config
from fedapp.core.errors import UserError
from fedapp.core.files import try_write
from fedapp.core.paths import absolute, folder_name, is_folder_name
from fedapp.engines.resources import Resources
from fedapp.experiments.csv_table import changing, read_table, write_table
from fedapp.experiments.jobs import (
    IN_LOG,
    IN_TERMINAL,
    STOPPED,
    Runner,
    problem_of,
    run_attached,
    run_reported,
    runner_for,
)
from fedapp.experiments.sweep_options import Vary
from fedapp.results.comparison.groups import variable_keys
from fedapp.results.comparison.result_numbers import result_numbers
from fedapp.results.comparison.spread import LAST10, RESULT_NUMBERS, accuracy_texts, spread_columns
from fedapp.results.folders import check_writable, is_free
from fedapp.results.formatting import short_reason
from fedapp.results.outcome import outcome
from fedapp.results.run_directory import RunDirectory, Scalar
from fedapp.runtime.process.earlier_run import changed_file

log = logging.getLogger(__name__)

_SHOWN = (
    "accuracy_of", "accuracy_final", LAST10, "accuracy_best", "best_round", "seconds", "reason",
)  # fmt: skip


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    varied: dict[str, Scalar]
    seed: int
    config: dict[str, Any]  # the whole run configuration, paths absolute

    @property
    def directory(self) -> RunDirectory:
        """The run's directory, which may not exist yet."""
        return RunDirectory(Path(self.config["output-dir"]) / self.config["run-name"])

    @property
    def combination(self) -> str:
        """The varied values as text."""
        return " ".join(f"{key}={value}" for key, value in self.varied.items()) or "all"

    @property
    def outcome(self) -> str:
        """How the run ended, or an earlier one of the same name: completed, diverged, or ""."""
        return outcome(self.directory)


def plan(
    project: Path, base: Mapping[str, Any], vary: Vary, seeds: Sequence[int], folder: Path
) -> list[SweepRun]:
    """Return all runs of a sweep, checked, with seeds innermost; this writes nothing.

    Args:
        project: the folder of pyproject.toml.
        base: the common configuration of all runs; keys that a sweep sets itself are ignored.
        vary: the values of each varied key.
        seeds: of every combination.
        folder: the folder for the run directories.

    Raises:
        UserError: the first combination that is invalid, or whose run directory is not free.
    """
    runs = []
    for values in product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        for seed in seeds:
            location = {"run-name": run_name(varied, seed), "output-dir": str(folder)}
            overrides = {**base, **varied, "seed": seed, **location, "resume": "auto"}
            try:
                runs.append(SweepRun(varied, seed, load_run_config(project, overrides)))
            except UserError as error:
                combination = " ".join(f"{key}={value}" for key, value in varied.items())
                raise UserError(f"{combination or 'the sweep'}: {error}") from None
    names = Counter(each.directory.name for each in runs)
    if names and (most := names.most_common(1)[0])[1] > 1:
        raise UserError(f"two combinations would both be called '{most[0]}'; sweep them separately")
    for each in runs:
        _check_earlier(each)
    return runs


def sweep_folder(output_dir: Path, name: str) -> Path:
    """Return the absolute folder of a sweep.

    Raises:
        UserError: `name` is not a folder name, or the folder is a run's or cannot be written.
    """
    if not is_folder_name(name):
        raise UserError(f"--name {name!r} must be a plain folder name")
    folder = absolute(output_dir, "--output-dir") / name
    check_writable(folder, "the sweep's folder")
    if (folder / "config.toml").exists():
        raise UserError(f"{folder} is the folder of a run: choose another --name")
    return folder


def without_effect(runs: Sequence[SweepRun], shared: Iterable[str] = ()) -> list[str]:
    """Return a sentence per varied key without effect in some runs, per shared key in all."""
    notes = []
    configs = [parse_config(each.config) for each in runs]
    varied = runs[0].varied if runs else {}
    for key in [*varied, *shared]:
        idle = [r for r, config in zip(runs, configs, strict=True) if no_effect([key], config)]
        if len(idle) == len(runs):
            notes.append(f"{key} has no effect in any run")
        elif idle and key in varied:
            some = f"{len(idle)} of {len(runs)} runs (first: {idle[0].directory.name})"
            notes.append(f"{key} has no effect in {some}")
    return notes


def planned(runs: Sequence[SweepRun]) -> list[dict[str, str]]:
    """Return one row per run: whether it will run or be skipped."""
    return [
        {"run": each.directory.name, "plan": f"skip: {each.outcome}" if each.outcome else "run"}
        for each in runs
    ]


def run_name(varied: Mapping[str, Scalar], seed: int) -> str:
    """Name a run after its values: words alone, numbers with their key as prefix."""
    words = [v if isinstance(v, str) else f"{k}{v}" for k, v in varied.items()]
    return folder_name("-".join(words), f"-seed{seed}") if words else f"seed{seed}"


def execute(
    project: Path,
    runs: Sequence[SweepRun],
    resources: Resources,
    runner: Runner | None = None,
    jobs: int = 0,
) -> list[dict[str, Any]]:
    """Execute the runs that have not ended, `jobs` at a time in one process each.

    With jobs=0 they run one after the other on workers. Returns one row of results per run; the row
    of a failed run has the reason. sweep.csv beside the runs always has the rows so far.
    """
    runner = runner or runner_for(jobs)
    rows = [result_row(each) for each in runs]
    table = runs[0].directory.path.parent / "sweep.csv"
    waiting = [index for index, each in enumerate(runs) if not each.outcome]
    _save(rows, table)
    done = len(runs) - len(waiting)
    log.info("%d runs, %d ended before; results in %s", len(runs), done, table)

    def one(index: int) -> str:
        return _run_one(project, runs[index], resources, runner)

    unknown = set(waiting)
    try:
        for index, problem in run_reported(jobs, one, waiting, lambda i: runs[i].directory.name):
            rows[index] = _row_after(runs[index], problem)
            unknown.discard(index)
            _take_over(rows, runs)
            _save(rows, table)
    except KeyboardInterrupt:
        for index in unknown:
            rows[index] = result_row(runs[index])
        _save(rows, table)
        raise
    return rows


def result_row(each: SweepRun) -> dict[str, Any]:
    """Return a run's results from its directory."""
    summary = result_numbers(each.directory)
    row = {"run": each.directory.name, "combination": each.combination, **each.varied}
    row |= {"seed": each.seed, "status": summary.get("status", "to run")}
    return {**row, **{key: summary.get(key) for key in _SHOWN}}


def _row_after(each: SweepRun, problem: str) -> dict[str, Any]:
    """Return the row of a run that has just ended; `problem` as `_run_one` returns it."""
    if not problem:
        return result_row(each)
    status, reason = (STOPPED, "") if problem == STOPPED else ("failed", problem)
    return {**result_row(each), "status": status, "reason": reason}


def _take_over(rows: list[dict[str, Any]], runs: Sequence[SweepRun]) -> None:
    """Put in the results of runs that another process has completed in the meantime."""
    for index, each in enumerate(runs):
        if rows[index]["status"] != "completed" and each.outcome == "completed":
            rows[index] = result_row(each)


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per combination: mean and deviation over the completed seeds."""
    combinations: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        combinations.setdefault(row["combination"], []).append(row)
    return [_combination_row(name, members) for name, members in combinations.items()]


def readable(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `summarise` as formatted text; seconds are those of one run."""
    several = len({row["accuracy_of"] for row in summary if row["accuracy_of"]}) > 1
    return [
        {
            "combination": row["combination"],
            "completed": f"{row['completed']} of {row['runs']}",
            "seeds": " ".join(map(str, row["seeds"])),
            **({"accuracy of": row["accuracy_of"]} if several else {}),
            **accuracies,
            "seconds": row["seconds"],
        }
        for row, accuracies in zip(summary, accuracy_texts(summary), strict=True)
    ]


def _save(rows: Sequence[Mapping[str, Any]], table: Path) -> None:
    """Write sweep.csv, with the lines of other runs as they are now: other hosts write it too.

    A full disk is logged, and does not end the runs.
    """
    with changing(table):
        try_write(table.name, lambda: write_table(table, [*_other_runs(table, rows), *rows]))


def _other_runs(table: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of an earlier sweep.csv about other runs that still exist."""
    names = {row["run"] for row in rows}
    earlier = read_table(table, ["run"])
    others = [row for row in earlier if row["run"] and row["run"] not in names]
    return [row for row in others if (table.parent / row["run"]).is_dir()]


def _run_one(project: Path, each: SweepRun, resources: Resources, runner: Runner) -> str:
    """Execute one run, unless another process has completed it; return the error, or ""."""
    if each.outcome == "completed":
        return ""
    before = each.directory.summary()
    reason = IN_TERMINAL if runner is run_attached else IN_LOG
    problem = problem_of(lambda: runner(project, each.config, resources), reason)
    if not problem and each.outcome == "completed":
        return ""
    summary = each.directory.summary()
    reason = "" if summary == before else short_reason(summary)
    if summary != before and summary.get("status") == STOPPED and not reason:
        return STOPPED
    return reason or problem or "it ended before it was completed"


def _combination_row(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    done = [row for row in rows if row["status"] == "completed"]
    result: dict[str, Any] = {
        "combination": name,
        "seeds": [row["seed"] for row in done],
        "runs": len(rows),
        "completed": len(done),
        "accuracy_of": next((row["accuracy_of"] for row in done if row.get("accuracy_of")), ""),
    }
    known = {name: [r[name] for r in done if r.get(name) is not None] for name in RESULT_NUMBERS}
    return result | spread_columns(known)


def _check_earlier(each: SweepRun) -> None:
    """Raise UserError if a run directory has a run with another configuration."""
    path = each.directory.path
    if not path.exists() or (path.is_dir() and is_free(path)):
        return
    run, config = RunDirectory.load(path), parse_config(each.config)
    earlier = parse_config(run.config()).flat()
    variable = variable_keys(earlier)
    for key, value in config.recorded().items():
        if key not in variable and earlier[key] != value:
            raise UserError(
                f"{path} has a run with {key} = {earlier[key]!r} instead of {value!r}: "
                "choose another --name, or remove that run"
            )
    if each.outcome and (change := changed_file(run, config)):
        raise UserError(
            f"{path} has a run with {change}: choose another --name, or remove that run"
        )
