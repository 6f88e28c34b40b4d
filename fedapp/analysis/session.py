"""One call of `fedapp analyse`: it measures rounds of runs and writes the results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.rounds import cost_sentence
from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.checks import check_measures
from fedapp.config.measures import (
    CLASS_ACCURACY_MEASURES,
    WORDS,
    measures_of_models,
)
from fedapp.core.errors import UserError, unknown
from fedapp.core.progress import tracked
from fedapp.results import measures_file as store
from fedapp.results.class_accuracy import class_accuracy_measures
from fedapp.results.comparison.groups import run_labels
from fedapp.results.folders import check_writable
from fedapp.results.plots.measure_plots import write_plots
from fedapp.results.report.report import write_report
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.earlier_run import check_extension


@dataclass(frozen=True)
class AnalysisRequest:
    """The requested measures; without `rounds` the newest measurable round."""

    measures: str
    rounds: Sequence[int] = ()
    every: bool = False
    clients: int = 10
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the runs' data-dir or device

    def check(self) -> None:
        """Raise UserError for an unknown measure, or if there is none."""
        if not self.measures.split():
            raise UserError(f"no measure is named; choose from {', '.join(WORDS)}")
        for word in self.measures.split():
            if word not in WORDS:
                raise unknown("measure", word, WORDS)


def analyse_runs(
    paths: Sequence[Path], request: AnalysisRequest, say: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """Measure runs and rewrite their plots and reports; return all measured rounds, by run."""
    request.check()
    runs = [RunDirectory.load(path) for path in paths]
    for run in runs:
        check_writable(run.path, "run directory")
        check_extension(run)  # first: its method may be of that file
        config = run.config()
        bottleneck = int(config.get("bottleneck", 0))
        check_measures(str(config["method"]), request.measures, bottleneck)
        _check_own(run, request.measures)
    measured: dict[str, list[dict[str, Any]]] = {}
    chosen: dict[str, _Chosen] = {}
    for run, label in zip(runs, run_labels(runs), strict=True):
        if measures_of_models(request.measures):
            chosen[label] = _measure(SavedRun(run, request.overrides), request, say)
        _measure_history(run, request.measures, say)
        write_plots(run)
        write_report(run.path)
        measured[label] = store.read(run)
        if measured[label]:
            say(f"wrote analysis.json, analysis.csv, analysis/ and report.html in {run.path}")
    if note := _different_rounds(chosen):
        say(note)
    return measured


def _check_own(run: RunDirectory, measures: str) -> None:
    """Raise UserError for a measure that trains local models, if their data are elsewhere."""
    for word in measures_of_models(measures):
        if MEASURES[word].local and run.config().get("partition") == "own":
            raise UserError(
                f"measure '{word}' of {run.path} trains local models, but with partition 'own' the "
                "clients' data stay on their hosts: choose measures without local models (see "
                "`fedapp measures`)"
            )


@dataclass(frozen=True)
class _Chosen:
    """The rounds of a run that were measured, and those that can be."""

    measured: Sequence[int]
    possible: frozenset[int]


def _different_rounds(chosen: Mapping[str, _Chosen]) -> str:
    """Return a warning if runs were measured at different rounds; "" if at the same."""
    newest = {label: max(each.measured) for label, each in chosen.items()}
    if len(set(newest.values())) < 2:
        return ""
    common = frozenset.intersection(*(each.possible for each in chosen.values()))
    advice = (
        f"--round {max(common)} measures all of them at one round"
        if common
        else "no round can be measured in all of them (checkpoint-every=1 checkpoint-keep=0)"
    )
    rounds = ", ".join(f"{label}: {number}" for label, number in newest.items())
    return f"the runs are measured at different rounds ({rounds}); {advice}"


def _measure(saved: SavedRun, request: AnalysisRequest, say: Callable[[str], None]) -> _Chosen:
    known = saved.measurable()
    rounds = request.rounds or (known if request.every else known[-1:])
    words = [word for word in request.measures.split() if word in MEASURES]
    for number in tracked(rounds, "measuring rounds"):
        say(cost_sentence(saved.measure(number, words, request.clients)))
    return _Chosen(rounds, frozenset(number + 1 for number in saved.starts))


def _measure_history(run: RunDirectory, measures: str, say: Callable[[str], None]) -> None:
    """Compute the measures that need only the recorded class accuracies."""
    words = [word for word in measures.split() if word in CLASS_ACCURACY_MEASURES]
    rows = [row for row in run.rounds() if row.get("class_accuracy") is not None]
    if words and not rows:
        say(f"{run.path} has no round with the accuracy of each class: {words[0]} is not measured")
    elif words:
        figures = class_accuracy_measures(" ".join(words), rows)
        measured = {word: {"model": {word: figures[word]}} for word in words}
        store.add(run, {"round": rows[-1]["round"], "measures": measured})
