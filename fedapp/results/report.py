"""The HTML report of a run, built only from the files of its run directory.

A report can be made at any time, also during the run, and two reports of one run are equal byte for
byte. Parts whose file is missing, for example after a failure before the first evaluation, are left
out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from fedapp.config.run_keys import MACHINE, RECORDING, RunKeys, kebab, marked_keys
from fedapp.core.files import write_atomically
from fedapp.results import measures_file as store
from fedapp.results import page
from fedapp.results.formatting import MISSING, decimal, headline, megabytes, percent, status
from fedapp.results.plots import client_plots, measure_plots
from fedapp.results.plots import curves as plots
from fedapp.results.plots.rendering import svg
from fedapp.results.run_directory import RunDirectory, best_round

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
                page.section("Accuracy of each class", _classes(rows, class_names)),
                page.section("Data of the clients", _labels(partition)),
                page.section("Accuracy of the clients", _clients(run.client_scores())),
                page.section("Failures", _failures(rows)),
            ),
            page.section("Measurements", _measures(run, rows)),
            page.section("Rounds", _rounds(rows)),
            page.section("Configuration", *_configuration(config)),
            page.section("Reproduce", *_origin(run.path, summary)),
        ],
    )


def totals(rows: Rows) -> dict[str, Any]:
    """Compute the results of summary.json from the rounds, for runs that have none yet."""
    measured = _measured(rows, "accuracy")
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


def describe(name: str, rows: Rows, key: str, write: Writer) -> str:
    """Describe a curve's first and last values, for readers who cannot see it."""
    measured = _measured(rows, key)
    if not measured:
        return f"{name} by round: not measured."
    first, last = measured[0], measured[-1]
    return (
        f"{name} by round: from {write(first[key])} in round {first['round']} "
        f"to {write(last[key])} in round {last['round']}."
    )


def _classes(rows: Rows, class_names: Sequence[str]) -> str:
    """Draw the last measured accuracy of each class; fold the plot if there are many classes."""
    measured = _measured(rows, "class_accuracy")
    if not measured:
        return ""
    values = measured[-1]["class_accuracy"]
    names = class_names if len(class_names) == len(values) else [str(i) for i in range(len(values))]
    known = [(value, name) for value, name in zip(values, names, strict=True) if value is not None]
    worst, best = min(known, default=(None, MISSING)), max(known, default=(None, MISSING))
    description = (
        f"After round {measured[-1]['round']}: lowest {percent(worst[0])} (class {worst[1]}), "
        f"highest {percent(best[0])} (class {best[1]})."
    )
    figure = page.plot(
        svg(client_plots.class_accuracy(values, names), f"Accuracy of each class. {description}")
    )
    if len(values) > client_plots.MAX_LABELS:
        figure = page.details(f"All {len(values)} classes", figure)
    return page.paragraph(description) + figure


def _labels(partition: Mapping[str, Any]) -> str:
    """Draw the clients' label distribution and describe its size and skew."""
    if not partition:
        return ""
    counts = np.asarray(partition["train_counts"])
    images, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    description = (
        f"{len(counts):,} clients; each has {_span(images)} training images "
        f"(median {np.median(images):,.0f}) of {_span(classes)} classes."
    )
    figure = client_plots.label_distribution(counts, partition["class_names"])
    drawn = page.plot(svg(figure, f"Label distribution: {description}"))
    return page.paragraph(description) + drawn


def _measures(run: RunDirectory, rows: Rows) -> str:
    """Plot every measure of the run, with a text description."""
    entries = store.read(run)
    figures = measure_plots.of_run(run, entries, rows)
    plotted = [
        page.plot(svg(figure, measure_plots.describe_choice(word, entries)))
        for word, figure in figures.items()
    ]
    return page.side_by_side(*plotted)


def _span(values: np.ndarray) -> str:
    """Format the range of [clients] whole numbers: "62 to 95", or "2" if all are equal."""
    low, high = values.min(), values.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rounds(rows: Rows) -> str:
    """Show the last rounds, and all rounds in a folded table."""
    if not rows:
        return ""
    extra = sorted({key for row in rows for key, value in row.items() if _is_number(value)})
    columns = {
        **COLUMNS,
        **{
            key: (key.replace("_", " ").capitalize(), _number)
            for key in extra
            if key not in COLUMNS
        },
    }
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


def _clients(scores: Mapping[str, Any]) -> str:
    """Draw the distribution of the clients' newest accuracies, each on its own test images."""
    known = [each["accuracy"] for each in scores.get("clients", {}).values() if each["examples"]]
    if not known:
        return ""
    low, middle, high = (float(q) for q in np.quantile(known, [0, 0.5, 1]))
    description = (
        f"After round {scores['round']}: {len(known):,} clients on their own test images, from "
        f"{percent(low)} to {percent(high)} (median {percent(middle)})."
    )
    figure = client_plots.client_accuracy(known)
    return page.paragraph(description) + page.plot(svg(figure, f"Distribution. {description}"))


def _failures(rows: Rows) -> str:
    """Draw and list the clients that gave no update or no score, by round, with the reasons."""
    items = [(f"Round {row['round']}", text) for row in rows for text in row.get("failures") or ()]
    if not items:
        return ""
    late, rounds = sum(row.get("late", 0) for row in rows), len({number for number, _ in items})
    description = f"{len(items):,} in {rounds:,} of {len(rows):,} rounds; {late:,} were too late."
    figure = client_plots.failed_clients(rows)
    drawn = page.plot(svg(figure, f"Clients without an update by round: {description}"))
    reasons = page.details("Reasons", page.settings_table("Failures", items))
    return page.paragraph(description) + drawn + reasons


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else decimal(value)


def _measured(rows: Rows, key: str) -> Rows:
    """Keep the rounds that measured `key`."""
    return [row for row in rows if row.get(key) is not None]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _configuration(config: Mapping[str, Any]) -> list[str]:
    """Show what was chosen for this run, and fold the whole configuration."""
    fields = {kebab(name): field.default for name, field in RunKeys.model_fields.items()}
    recording = marked_keys(RunKeys, RECORDING, MACHINE)
    chosen = {
        key: value
        for key, value in config.items()
        if key not in recording and fields.get(key, value) not in (value, "auto")
    }
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
    command = summary.get("command")
    again = f"fedapp run -c {quote(str(path / 'config.toml'))} -c \"run-name='again'\""
    return [
        page.code(command) if command else "",
        page.paragraph("Train it again from its configuration, and compare it with other runs:"),
        page.code(f"{again}\nfedapp compare {quote(str(path))} OTHER_RUN --html compare.html"),
        _settings("Seed, device and versions", facts) if facts else "",
    ]


def _text(value: Any) -> str:
    """Format a value as in the configuration."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
