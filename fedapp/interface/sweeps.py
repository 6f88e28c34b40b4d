"""`sweep`: many runs from Python, one per combination of values and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.config.installed_app import find_app
from fedapp.config.key_groups import kebab
from fedapp.config.overrides import is_file, read_overrides
from fedapp.core.errors import UserError
from fedapp.engines.resources import Engine, Resources
from fedapp.engines.subprocesses import COMPLETED
from fedapp.experiments import sweep as sweeps
from fedapp.experiments.jobs import Runner, runner_for
from fedapp.experiments.sweep_options import Vary, checked_seeds, checked_values, refuse_own
from fedapp.interface.keys import scalar
from fedapp.interface.notebook import Log, displayable, logged, relative
from fedapp.interface.rounds import to_frame
from fedapp.interface.runs import Run
from fedapp.interface.training import (
    Preset,
    find_engine,
    preset_texts,
    read_keys,
    train,
)
from fedapp.results.plots import curves
from fedapp.results.report import page
from fedapp.results.run_directory import Scalar

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Sweep:
    """The runs of a sweep.

    Attributes:
        path: the folder of the run directories and sweep.csv, absolute.
        runs: the runs that have begun, in the order of the combinations, seeds innermost; `varied`
            of each has its values.
        rows: one row per run, also of runs that could not begin: the values, "status", "reason",
            final and best accuracy as fractions, seconds.
    """

    path: Path
    runs: list[Run]
    rows: list[dict[str, Any]]

    @property
    def summary(self) -> list[dict[str, Any]]:
        """One row per combination: mean and standard deviation over its completed seeds.

        Accuracies are fractions, and seconds are those of one run. A deviation needs two seeds.
        """
        return sweeps.summarise(self.rows)

    @property
    def completed(self) -> bool:
        """Whether all runs are completed."""
        return all(row["status"] == "completed" for row in self.rows)

    def plot(self) -> Figure:
        """Return a figure of the test accuracy by round, with a curve per combination.

        A curve is the mean over the completed seeds, in the rounds that all of them evaluated, with
        a band of one standard deviation.
        """
        by_name: dict[str, list[list[dict[str, Any]]]] = {}
        for each in self.runs:
            if each.completed:
                words = [f"{k}={v}" for k, v in each.varied.items() if k != "seed"]
                by_name.setdefault(" ".join(words) or "all", []).append(each.directory.rounds())
        return displayable(curves.group_curves(list(by_name.items())))

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a line per run; raises UserError without pandas."""
        return to_frame(self.rows)

    def __repr__(self) -> str:
        done = sum(row["status"] == "completed" for row in self.rows)
        return f"<Sweep {self.path.name}: {done} of {len(self.rows)} runs completed>"

    def _repr_html_(self) -> str:
        """Return the table of the command."""
        failed = [f"{row['run']}: {row['reason']}" for row in self.rows if row["reason"]]
        table = page.table(f"Sweep {relative(self.path)}", sweeps.readable(self.summary))
        return table + "".join(page.paragraph(text) for text in failed)


def sweep(
    name: str,
    vary: Mapping[str, Iterable[Scalar]] | None = None,
    seeds: Iterable[int] = (0,),
    jobs: int = 0,
    *,
    preset: Preset = None,
    output_dir: str | Path = "runs",
    engine: str | None = None,
    **shared: Any,
) -> Sweep:
    """Run all combinations of values with all seeds; the same call again continues the sweep.

    All are checked before the first starts; a failed one stops no other. An interruption ends the
    active runs; with engine="in-process" it waits for the active run's end.

    Args:
        name: the name of the folder OUTPUT_DIR/NAME for the run directories.
        vary: for each run-config key, with underscores, the values to try.
        seeds: of every combination.
        jobs: number of simultaneous runs, each in one process; 0: one run at a time, on `engine`.
        preset: the common configuration of all runs, as for `run`.
        output_dir: the parent of the sweep's folder.
        engine: as for `run`; only with jobs=0.
        shared: run-config keys that all runs share, with underscores.

    Raises:
        UserError: the first combination that is invalid, or whose run directory is not free.
    """
    chosen = _engine(engine, jobs)
    with logged() as log:
        app, varied = find_app(), _values(vary or {})
        base, folder = _base(preset, shared, varied), sweeps.sweep_folder(Path(output_dir), name)
        planned = sweeps.plan(app, base, varied, _seeds(seeds), folder)
        _say(sweeps.without_effect(planned, map(kebab, shared)))
        runner = runner_for(jobs) if jobs else _runner(chosen, log)
        rows = sweeps.execute(app, planned, Resources(), runner, jobs)
    begun = [each for each in planned if (each.directory.path / "config.toml").is_file()]
    runs = [Run(each.directory, {**each.varied, "seed": each.seed}) for each in begun]
    return Sweep(folder, runs, rows)


def _engine(name: str | None, jobs: int) -> Engine | None:
    """Return the chosen engine; raises UserError if the runs have processes of their own."""
    if (chosen := find_engine(name)) and jobs:
        raise UserError("engine is for jobs=0; with jobs every run has a process of its own")
    return chosen


def _say(notes: Iterable[str]) -> None:
    for note in notes:
        print(note)


def _base(preset: Preset, shared: Mapping[str, Any], varied: Vary) -> dict[str, Any]:
    """Return the common configuration; raises UserError as `refuse_own` does."""
    pairs = [text for text in preset_texts(preset) if not is_file(text)]
    refuse_own("preset", read_overrides(pairs), varied)
    refuse_own("sweep", map(kebab, shared), varied)
    return read_keys(preset, shared, more=True)


def _values(vary: Mapping[str, Iterable[Scalar]]) -> Vary:
    return {kebab(key): _scalars(key, values) for key, values in vary.items()}


def _scalars(key: str, values: Iterable[Scalar]) -> tuple[Scalar, ...]:
    """Return the values of a varied key; raises UserError for one that no key takes."""
    scalars = [scalar(value) for value in _listed(key, values)]
    for value in scalars:
        if not isinstance(value, str | int | float):
            raise UserError(f"vary: {value!r} of '{key}' is not a word, number, True or False")
    return checked_values("vary", kebab(key), scalars)


def _seeds(seeds: Iterable[int]) -> list[int]:
    found = [scalar(seed) for seed in _listed("seeds", seeds)]
    if wrong := [seed for seed in found if type(seed) is not int]:
        raise UserError(f"seeds has {wrong[0]!r}, which is no whole number")
    return checked_seeds("seeds", found)


def _runner(engine: Engine | None, log: Log) -> Runner:
    """Return a function that executes one run on an engine, with its output in `log`."""

    def runner(app: Path, values: Mapping[str, Any], resources: Resources) -> int:
        log.mistake = ""
        code = train(app, values, resources, engine, log)
        if code != COMPLETED and log.mistake:
            raise UserError(log.mistake)
        return code

    return runner


def _listed(what: str, values: Any) -> Sequence[Any]:
    """Return values as a list; raises UserError for a single one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UserError(f"{what} is {values!r} but must be a list of values")
    return list(values)
