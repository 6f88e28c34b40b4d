"""The HTML report of a run, built only from the files of its run directory.

A report can be made at any time, also during the run, and two reports of one run are equal byte for
byte. Parts whose file is missing, for example after a failure before the first evaluation, are left
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from fedapp.config.key_groups import MACHINE, RECORDING, marked_keys
from fedapp.config.overrides import DEFAULT
from fedapp.config.run_keys import RunKeys
from fedapp.core.files import write_atomically
from fedapp.results import measures_file as store
from fedapp.results.formatting import (
    MISSING,
    decimal,
    field_head,
    headline,
    megabytes,
    percent,
    status,
)
from fedapp.results.outcome import best_round
from fedapp.results.plots import curves as plots
from fedapp.results.plots import measure_plots
from fedapp.results.plots.rendering import svg
from fedapp.results.report import clients as sections
from fedapp.results.report import page
from fedapp.results.run_directory import RunDirectory

Rows = Sequence[Mapping[str, Any]]

LAST_ROUNDS = 10
SUMMED = ("seconds", "bytes_down", "bytes_up")
Writer = Callable[[Any], str]
# The fixed columns of metrics.jsonl in reading order, with their formats.
COLUMNS: dict[str, tuple[str, Writer]] = {
    "round": ("Round", str),
    "accuracy": ("Accuracy", percent),
    "loss": ("Loss", decimal),
    "train_loss": ("Train loss", decimal),
    "clients": ("Clients", str),
    "failed": ("Failed", str),
    "seconds": ("Seconds", "{:.2f}".format),
    "bytes_down": ("Down", megabytes),
    "bytes_up": ("Up", megabytes),
}
# Further numbers that a round of any method may have; the others are a method's or a callback's.
_COMMON = (
    "asked", "client_bytes_down", "client_bytes_up", "images", "lr", "eval_bytes_down",
    "eval_bytes_up", "late", "global_accuracy", "global_loss", "client_worst", "client_count",
    "client_reinitialised", "wait_seconds", "test_seconds", "slowest_client", "slowest_seconds",
)  # fmt: skip
_OF_CLIENTS = ("client_accuracy", "client_new", "client_loss")  # beginnings of the clients' scores


def write_report(run_dir: str | Path) -> Path:
    """Write report.html into a run directory and return its path.

    Raises:
        UserError: `run_dir` is not a run directory, or one of its files is damaged.
    """
    run = RunDirectory.load(run_dir)
    path = run.path / "report.html"
    write_atomically(path, report_html(run).encode())
    return path


def title(run: RunDirectory) -> str:
    """Name a run by its method and data set, or by its directory if these are unknown."""
    config = run.config()
    return " on ".join(str(config[key]) for key in ("method", "dataset") if key in config) or (
        run.name
    )


def report_html(run: RunDirectory) -> str:
    """Build the whole page."""
    rows, partition, config = run.rounds(), run.partition(), run.config()
    summary = {**totals(rows), **run.summary()}
    if summary["rounds"] < (planned := int(config.get("num-rounds", 0))):
        summary["rounds"] = f"{summary['rounds']} of {planned}"
    class_names = partition.get("class_names", [])
    tested = summary.get("accuracy_of", plots.GLOBAL_MODEL)
    return page.page(
        title(run),
        _lead(run.name, summary),
        [
            page.section("Results", page.numbers(headline(summary))),
            page.section("Accuracy and loss", _curves(rows, tested)),
            page.side_by_side(
                page.section("Accuracy of each class", sections.classes(rows, class_names)),
                page.section("Data of the clients", sections.labels(partition)),
                page.section(
                    "Accuracy of the clients",
                    sections.clients(run.client_scores(), _training_clients(config)),
                ),
                page.section("Time of the rounds", sections.times(rows)),
                page.section("Failures", sections.failures(rows)),
            ),
            page.section("Further metrics", _metric_curves(rows)),
            page.section("Measurements", _measures(run, rows)),
            page.section("Rounds", _rounds(rows)),
            page.section("Configuration", *_configuration(config, run.origins())),
            page.section("Reproduce", *_origin(run.path, summary)),
        ],
    )


def totals(rows: Rows) -> dict[str, Any]:
    """Compute the results of summary.json from the rounds, for runs that have none yet."""
    measured = sections.rounds_with(rows, "accuracy")
    best = best_round(rows)
    return {
        "rounds": len(rows),
        "accuracy_final": measured[-1]["accuracy"] if measured else None,
        "accuracy_best": best.get("accuracy"),
        "best_round": best.get("round"),
        **{key: sum(row.get(key) or 0 for row in rows) for key in SUMMED},
    }


def _lead(name: str, summary: Mapping[str, Any]) -> str:
    """Return the first lines: the run's status, and the reason if it did not complete."""
    run_status = str(summary.get("status") or "unfinished")
    known = run_status if run_status in {"completed", "failed", "interrupted"} else "unfinished"
    facts = [f"{key} {summary[key]}" for key in ("model", "seed", "device") if key in summary]
    run = ", ".join([f"run {name}", *facts])
    reason = page.paragraph(status(summary), "reason") if summary.get("reason") else ""
    badge = page.paragraph(run_status, f"status {known}")
    return badge + page.paragraph(run, "faint") + reason


def _curves(rows: Rows, tested: str) -> str:
    if not rows:
        return page.paragraph("No round has finished.")
    accuracy = svg(
        plots.accuracy_curve(rows, tested), describe("Test accuracy", rows, "accuracy", percent)
    )
    loss = svg(plots.loss_curve(rows, tested), describe("Test loss", rows, "loss", decimal))
    return page.side_by_side(page.plot(accuracy), page.plot(loss))


def own_metrics(rows: Rows) -> list[str]:
    """Return the numbers of rounds that a method, a callback or privacy has added, by name."""
    known = {*COLUMNS, *_COMMON}
    names = _number_fields(rows)
    return [name for name in names if name not in known and not name.startswith(_OF_CLIENTS)]


def _number_fields(rows: Rows) -> list[str]:
    """Return the fields of metrics.jsonl that have a number in some round, in order."""
    return sorted({key for row in rows for key, value in row.items() if _is_number(value)})


def _metric_curves(rows: Rows) -> str:
    """Plot each number that a method or callback has added to at least two rounds."""
    drawn = []
    for key in own_metrics(rows):
        measured = [row for row in rows if _is_number(row.get(key))]
        if len(measured) > 1:
            words = describe(field_head(key), measured, key, _writer(key))
            drawn.append(page.plot(svg(plots.metric_curve(measured, key), words)))
    return page.side_by_side(*drawn)


def describe(name: str, rows: Rows, key: str, write: Writer) -> str:
    """Describe a curve's first and last values, for readers who cannot see it."""
    measured = sections.rounds_with(rows, key)
    if not measured:
        return f"{name} by round: not measured."
    first, last = measured[0], measured[-1]
    return (
        f"{name} by round: from {write(first[key])} in round {first['round']} "
        f"to {write(last[key])} in round {last['round']}."
    )


def _measures(run: RunDirectory, rows: Rows) -> str:
    """Plot every measure of the run, with a text description."""
    entries = store.read(run)
    figures = measure_plots.of_run(run, entries, rows)
    plotted = [
        page.plot(svg(figure, measure_plots.describe_choice(word, entries)))
        for word, figure in figures.items()
    ]
    return page.side_by_side(*plotted)


def _rounds(rows: Rows) -> str:
    """Show the last rounds, and all rounds in a folded table."""
    if not rows:
        return ""
    extra = [key for key in _number_fields(rows) if key not in COLUMNS]
    columns = {**COLUMNS, **{key: (field_head(key), _writer(key)) for key in extra}}
    heads = [head for head, _ in columns.values()]
    cells = [
        [
            MISSING if row.get(key) is None else write(row[key])
            for key, (_, write) in columns.items()
        ]
        for row in rows
    ]
    tables = page.rounds_table("The last rounds", heads, cells[-LAST_ROUNDS:])
    if len(rows) > LAST_ROUNDS:
        whole = page.rounds_table("All rounds", heads, cells)
        tables += page.details(f"All {len(rows)} rounds", whole)
    return tables


def _writer(key: str) -> Writer:
    """Return how a column of metrics.jsonl is written: as percent, as megabytes or as a number."""
    return percent if "accuracy" in key else megabytes if "bytes" in key else _number


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else decimal(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _training_clients(config: Mapping[str, Any]) -> float:
    """Return the number of clients that may train; without limit in runs of earlier versions."""
    return config["num-clients"] - config["new-clients"] if "new-clients" in config else math.inf


def _configuration(config: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Show what was chosen for this run, and fold the whole configuration."""
    hidden = origins.keys() | marked_keys(RunKeys, RECORDING, MACHINE)
    if DEFAULT not in origins.values():  # an earlier version's run: defaults are not marked
        defaults = RunKeys.defaults()
        hidden |= {key for key, value in config.items() if defaults.get(key, value) == value}
    chosen = {key: value for key, value in config.items() if key not in hidden}
    chosen = {key: config[key] for key in ("method", "dataset", "seed") if key in config} | chosen
    whole = _settings("Configuration", config)
    return [
        _settings("Chosen for this run", chosen),
        page.details(f"All {len(config)} keys", whole),
    ]


def _settings(label: str, values: Mapping[str, Any]) -> str:
    return page.settings_table(label, [(key, _text(value)) for key, value in values.items()])


def _origin(path: Path, summary: Mapping[str, Any]) -> list[str]:
    """List what a repetition needs: commands, the seed, the device, the versions."""
    facts = {key: summary[key] for key in ("seed", "device") if key in summary}
    facts.update(summary.get("versions") or {})
    again = f"{summary['command']}\n" if "command" in summary else ""
    return [
        page.paragraph("Train it again from its configuration, and compare it with other runs:"),
        page.code(f"{again}fedapp compare {quote(str(path))} OTHER_RUN --html compare.html"),
        _settings("Seed, device and versions", facts) if facts else "",
    ]


def _text(value: Any) -> str:
    """Format a value as in the configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
