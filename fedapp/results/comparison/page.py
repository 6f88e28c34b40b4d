"""The HTML page of a comparison: means over seeds, paired differences, all curves in one plot.

Like the report of a run, it needs only run directories and is one self-contained file with the same
bytes for the same runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedapp.core.files import write_named
from fedapp.results import measures_file as store
from fedapp.results.comparison import groups as comparison
from fedapp.results.comparison import text as comparison_text
from fedapp.results.comparison.spread import Spread
from fedapp.results.formatting import percent
from fedapp.results.plots import curves as plots
from fedapp.results.plots import measure_plots
from fedapp.results.plots.rendering import svg
from fedapp.results.report import page
from fedapp.results.run_directory import RunDirectory


def write_comparison(runs: Sequence[RunDirectory], path: Path, target: float | None = None) -> Path:
    """Create the folder if needed, write the page of a comparison and return its path."""
    write_named(path, comparison_html(runs, target).encode(), "an HTML file")
    return path


def comparison_html(runs: Sequence[RunDirectory], target: float | None = None) -> str:
    """Build the whole page; `target` is as in `comparison.compare`."""
    groups = comparison.group_runs(runs)
    compared = comparison.compare(runs, groups, target)
    tables = comparison_text.tables(compared)
    each = tables.pop("Runs")
    methods = dict.fromkeys(str(run.config().get("method", run.name)) for run in runs)
    lead = page.paragraph(f"{len(runs)} runs: {', '.join(run.name for run in runs)}", "faint")
    return page.page(
        f"Comparison of {', '.join(methods)}",
        lead,
        [
            *(page.section(title, page.table(title, rows)) for title, rows in tables.items()),
            page.section("In words", *map(page.paragraph, comparison_text.sentences(compared))),
            page.section("Test accuracy", _group_curves(groups), _curves(runs)),
            page.section("Measurements", _measures(runs)),
            page.section("Runs", page.table("Runs", each)),
            page.section("Settings that differ", _settings(runs)),
        ],
    )


def _group_curves(groups: Sequence[comparison.Group]) -> str:
    names = comparison.labels(groups)
    lines = [
        (name, [run.rounds() for run in _completed(group.runs)])
        for name, group in zip(names, groups, strict=True)
    ]
    means = [f"{name} {_mean_final(group)}" for name, group in zip(names, groups, strict=True)]
    return page.plot(
        svg(plots.group_curves(lines), f"Mean accuracy at the end: {', '.join(means)}.")
    )


def _completed(runs: Sequence[RunDirectory]) -> Sequence[RunDirectory]:
    """Return the completed runs, or all if there is none: a short run would cut the mean off."""
    return [run for run in runs if run.summary().get("status") == "completed"] or runs


def _mean_final(group: comparison.Group) -> str:
    spread = Spread.of(group.by_seed("accuracy_final").values())
    return spread.percent() if spread else "not measured"


def _curves(runs: Sequence[RunDirectory]) -> str:
    """Draw every run by itself, folded."""
    lines = [
        (label, run.rounds()) for label, run in zip(comparison.run_labels(runs), runs, strict=True)
    ]
    finals = ", ".join(
        f"{label} {percent(run.summary().get('accuracy_final'))}"
        for (label, _), run in zip(lines, runs, strict=True)
    )
    figure = plots.compare_curves(lines)
    drawn = page.plot(svg(figure, f"Test accuracy by round; at the end: {finals}."))
    return page.details(f"The {len(runs)} runs one by one", drawn)


def _measures(runs: Sequence[RunDirectory]) -> str:
    """Plot the measures that some of the runs have, with all runs in one plot."""
    named = zip(comparison.run_labels(runs), runs, strict=True)
    measured = [(label, entries) for label, run in named if (entries := store.read(run))]
    plots_by_name = measure_plots.plots_by_name(measured) if len(measured) > 1 else {}
    return page.side_by_side(
        *(
            page.plot(svg(measure_plots.draw(word, some), f"{name}: {_in_words(word, some)}"))
            for name, (word, some) in plots_by_name.items()
        )
    )


def _in_words(word: str, measured: Sequence[measure_plots.Run]) -> str:
    return "; ".join(
        f"{label}: {measure_plots.describe_choice(word, entries)}" for label, entries in measured
    )


def _settings(runs: Sequence[RunDirectory]) -> str:
    """List the keys, except `comparison.variable_keys`, whose values differ between runs."""
    configs = comparison.comparable_configs(runs)
    names = comparison.unique_names(runs)
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [
        key
        for key in keys
        if not all(key in comparison.variable_keys(config) for config in configs)
        and len({repr(config.get(key)) for config in configs}) > 1
    ]
    rows: list[dict[str, Any]] = [
        {"key": key, **{n: c.get(key) for n, c in zip(names, configs, strict=True)}}
        for key in differing
    ]
    return page.table("Settings that differ", rows) if rows else ""
