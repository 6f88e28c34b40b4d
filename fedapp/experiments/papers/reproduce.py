"""Run cells, seed by seed, and compare the results with the published numbers.

Finished runs with the same configuration are not repeated, and interrupted runs continue from their
last checkpoint, so the same command continues a table that takes days. results.csv gets the results
and keeps the cells of earlier calls.
"""

import logging
import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.engines.resources import Resources
from fedapp.experiments.csv_table import changed_table, changing, read_table, write_table
from fedapp.experiments.jobs import (
    problem_of,
    run_attached,
    run_in_subprocess,
    run_reported,
)
from fedapp.experiments.papers.cells import Cell
from fedapp.experiments.papers.metrics import PAPER_METRICS, PaperMetric, Summary
from fedapp.experiments.papers.plan import PlannedRun, Request, resolved, runs_of
from fedapp.experiments.papers.tables import Row
from fedapp.results.outcome import outcome
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.earlier_run import changed_file

log = logging.getLogger(__name__)
RESULTS = "results.csv"
_KEY = ("paper", "table", "cell", "changes")
_TEXTS = (
    *_KEY, "metric", "seeds", "unmeasured seeds", "at-chance seeds", "diverged seeds",
    "unfinished seeds", "best round", "rounds", "device", "note", "command",
)  # fmt: skip
_NUMBERS = (
    "published mean", "published std", "mean", "std", "difference", "final accuracy %",
    "best accuracy %", "seconds",
)  # fmt: skip


def check_folder(cells: Sequence[Cell], request: Request) -> None:
    """Raise UserError if a requested run, or results.csv, has not what this request expects.

    It is asked before the first training, which takes hours.
    """
    for cell in cells:
        for run in runs_of(cell, request):
            finished(run)
    earlier_results(request.output_dir, [])


def run_cell(cell: Cell, request: Request, project: Path) -> dict[str, Any]:
    """Run every unfinished seed of a cell; return the cell's row of results."""
    runs = runs_of(cell, request)
    for run in runs:
        if finished(run) is not None:
            log.info("%s is finished, not run again", run.name)
            continue
        log.info("%s starts", run.name)
        run_attached(project, run.configuration, Resources())
    return result(cell, runs_so_far(cell, request))


def runs_so_far(cell: Cell, request: Request) -> list[PlannedRun]:
    """Return a cell's requested runs, and those of other seeds that have finished in the folder.

    Other seeds with another configuration, or with other files, are left out.
    """
    runs = {run.seed: run for run in runs_of(cell, request)}
    ends = [path.name.rpartition("seed")[2] for path in request.output_dir.glob("*seed*")]
    for seed in {int(end) for end in ends if end.isdecimal()} - runs.keys():
        with suppress(UserError):
            if finished(other := PlannedRun(cell, seed, request)) is not None:
                runs[seed] = other
    return [runs[seed] for seed in sorted(runs)]


def run_ahead(cells: Sequence[Cell], request: Request, project: Path, jobs: int) -> None:
    """Run the unfinished seeds of all cells, `jobs` at a time in separate processes.

    A run that cannot start, or fails, is logged and left unfinished.
    """
    waiting = [run for cell in cells for run in runs_of(cell, request) if finished(run) is None]

    def one(run: PlannedRun) -> str:
        return problem_of(lambda: run_in_subprocess(project, run.configuration, Resources()))

    for _ in run_reported(jobs, one, waiting, lambda run: run.name):
        pass


def finished(run: PlannedRun) -> Summary | None:
    """Return the summary of a run that has finished; None if it has not.

    A diverged run counts as finished and is not repeated.

    Raises:
        UserError: its directory has a run with another configuration, or with other files of yours.
    """
    if not (run.directory / "config.toml").is_file():
        return None
    earlier, expected = RunDirectory.load(run.directory), resolved(run)
    is_finished = bool(outcome(earlier))
    other = "" if _same(earlier, expected) else "another configuration"
    if is_finished and not other:
        other = changed_file(earlier, expected)
    if other:
        raise UserError(
            f"{run.directory} has a run with {other}; move it away or choose another --output-dir"
        )
    return earlier.summary() if is_finished else None


def _same(earlier: RunDirectory, expected: RunConfig) -> bool:
    try:
        actual = parse_config(earlier.config())
    except UserError:  # from a version of fedapp with other keys
        return False
    identity = (actual.fingerprint(), actual.num_rounds)
    return identity == (expected.fingerprint(), expected.num_rounds)


def result(cell: Cell, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Return a cell's published and own results: means over the seeds whose losses stayed finite.

    Seeds that ended at chance level are in the mean, as in FedNTD's tables (10.00 %), and listed.
    An unmeasured seed's run has finished without the table's metric, as one of an earlier version.
    The spread is of the paper's kind: the standard deviation over the clients (mean of the seeds),
    or that over seeds, the sample's unless the metric's row has another; None for a single seed.
    """
    measure = PAPER_METRICS[cell.measure]
    summaries = [(run, finished(run)) for run in runs]
    ended = [(run, summary) for run, summary in summaries if summary is not None]
    done = [(run, summary) for run, summary in ended if summary["status"] == "completed"]
    read = [(run, measure.read(summary)) for run, summary in done]
    values = [value for _, value in read if value is not None]
    mean = statistics.mean(values) if values else None
    return {
        "paper": cell.paper,
        "table": cell.table,
        "cell": cell.name,
        "changes": runs[0].request.label(),
        "metric": cell.row.metric,
        "published mean": cell.row.mean,
        "published std": cell.row.std,
        "published failed": cell.row.failed,
        "mean": mean,
        "std": _over_clients(done) if cell.spread_of_clients else _over_seeds(measure, values),
        "difference": _difference(mean, cell.row),
        "seeds": _seeds(run for run, value in read if value is not None),
        "unmeasured seeds": _seeds(run for run, value in read if value is None),
        "at-chance seeds": _seeds(run for run, summary in done if summary.get("at_chance")),
        "diverged seeds": _seeds(run for run, summary in ended if summary["status"] != "completed"),
        "unfinished seeds": _seeds(run for run, summary in summaries if summary is None),
        **_accuracies([summary for _, summary in done]),
        "rounds": runs[0].overrides["num-rounds"],
        "seconds": sum(summary["seconds"] for _, summary in done) if done else None,
        "device": " ".join(sorted({str(summary["device"]) for _, summary in done})),
        "note": "; ".join(filter(None, [cell.row.note, measure.note, *cell.notes])),
        "command": runs[0].command(),
    }


def _difference(mean: float | None, row: Row) -> float | None:
    """Return ours minus the published mean; None if there is none of a training that worked."""
    return None if mean is None or row.mean is None or row.failed else mean - row.mean


def _over_seeds(measure: PaperMetric, values: Sequence[float]) -> float | None:
    return measure.spread(values) if len(values) > 1 else None


def _over_clients(done: Sequence[tuple[PlannedRun, Summary]]) -> float | None:
    """Return the mean over seeds of the deviation over clients, in points."""
    spreads = [100 * s["client_accuracy_std"] for _, s in done if "client_accuracy_std" in s]
    return statistics.mean(spreads) if spreads else None


def _seeds(runs: Iterable[PlannedRun]) -> str:
    return " ".join(str(run.seed) for run in runs)


def _accuracies(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return final and best test accuracy in percent, each the mean over seeds."""

    def mean(key: str) -> float | None:
        values = [summary[key] for summary in summaries if summary.get(key) is not None]
        return 100 * statistics.mean(values) if values else None

    return {
        "final accuracy %": mean("accuracy_final"),
        "best accuracy %": mean("accuracy_best"),
        "best round": " ".join(str(summary.get("best_round")) for summary in summaries),
    }


def write_results(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write results.csv: these rows, and the file's earlier rows of other cells."""
    path = folder / RESULTS
    with changing(path):
        write_table(path, [*earlier_results(folder, rows), *rows], list(rows[0]))
    return path


def earlier_results(folder: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of results.csv about other cells than those of `rows`.

    Raises:
        UserError: the file is not as `write_results` writes it.
    """
    path, new = folder / RESULTS, {_key(row) for row in rows}
    earlier = [row for row in read_table(path, _KEY) if _key(row) not in new]
    try:
        return [_typed(row) for row in earlier]
    except ValueError as error:
        raise changed_table(path, error) from None


def _typed(row: dict[str, str]) -> dict[str, Any]:
    """Return a row of results.csv as `result` made it."""
    absent = dict.fromkeys(_TEXTS, "")  # columns that earlier versions did not write
    numbers = {key: float(row[key]) if row.get(key) else None for key in _NUMBERS}
    return {**absent, **row, **numbers, "published failed": row.get("published failed") == "True"}


def _key(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row.get(key)) for key in _KEY)
