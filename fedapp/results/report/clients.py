"""The sections of a report about classes and clients: data, accuracies, times and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedapp.results.formatting import MISSING, percent, whole_percent
from fedapp.results.plots import client_plots as plots
from fedapp.results.plots.rendering import svg
from fedapp.results.report import page

Rows = Sequence[Mapping[str, Any]]
MOST_SLOW = 5  # clients that are named


def classes(rows: Rows, class_names: Sequence[str]) -> str:
    """Draw the last measured accuracy of each class; fold the plot if there are many classes."""
    measured = rounds_with(rows, "class_accuracy")
    if not measured:
        return ""
    values = measured[-1]["class_accuracy"]
    names = class_names if len(class_names) == len(values) else [str(i) for i in range(len(values))]
    known = [(value, name) for value, name in zip(values, names, strict=True) if value is not None]
    worst, best = min(known, default=(None, MISSING)), max(known, default=(None, MISSING))
    row = measured[-1]
    model = " of the global model" if row.get("global_accuracy") is not None else ""
    description = (
        f"After round {row['round']}{model}: lowest {percent(worst[0])} (class {worst[1]}), "
        f"highest {percent(best[0])} (class {best[1]})."
    )
    figure = page.plot(
        svg(plots.class_accuracy(values, names), f"Accuracy of each class. {description}")
    )
    if len(values) > plots.MAX_LABELS:
        figure = page.details(f"All {len(values)} classes", figure)
    return page.paragraph(description) + figure


def labels(partition: Mapping[str, Any]) -> str:
    """Draw the clients' label distribution and describe its size and skew."""
    if not partition:
        return ""
    counts = np.asarray(partition["train_counts"])
    images, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    description = (
        f"{len(counts):,} clients; each has {_span(images)} training images "
        f"(median {np.median(images):,.0f}) of {_span(classes)} classes."
    )
    figure = plots.label_distribution(counts, partition["class_names"])
    drawn = page.plot(svg(figure, f"Label distribution: {description}"))
    return page.paragraph(description) + drawn


def clients(scores: Mapping[str, Any], training: float = np.inf) -> str:
    """Draw the distribution of the clients' newest accuracies, each on its own test images.

    Clients whose number is not below `training` never train and are left out.
    """
    tested = scores.get("clients", {}).items()
    known = [each["accuracy"] for c, each in tested if each["examples"] and int(c) < training]
    if not known:
        return ""
    low, middle, high = (float(q) for q in np.quantile(known, [0, 0.5, 1]))
    description = (
        f"After round {scores['round']}: {len(known):,} clients on their own test images, from "
        f"{percent(low)} to {percent(high)} (median {percent(middle)})."
    )
    figure = plots.client_accuracy(known)
    return page.paragraph(description) + page.plot(svg(figure, f"Distribution. {description}"))


def times(rows: Rows) -> str:
    """Draw where the rounds' time went, and name the clients that were the slowest most often."""
    timed = [row for row in rows if "wait_seconds" in row]  # not of earlier versions
    total = sum(row["seconds"] for row in timed)
    if not total:
        return ""
    waiting, tests = (sum(row[key] for row in timed) for key in ("wait_seconds", "test_seconds"))
    description = (
        f"{whole_percent(waiting / total)} of the time the server waited for clients, "
        f"{whole_percent(tests / total)} were tests, "
        f"{whole_percent(1 - (waiting + tests) / total)} its own work."
    )
    drawn = page.plot(svg(plots.round_times(timed), f"Time of the rounds. {description}"))
    slowest = Counter(row["slowest_client"] for row in timed if "slowest_client" in row)
    seconds = {
        client: max(row["slowest_seconds"] for row in timed if row.get("slowest_client") == client)
        for client, _ in slowest.most_common(MOST_SLOW)
    }
    items = [
        (f"Client {client}", f"in {slowest[client]:,} rounds, up to {longest:.2f} s")
        for client, longest in seconds.items()
    ]
    table = page.details("Slowest clients", page.settings_table("Slowest clients", items))
    return page.paragraph(description) + drawn + (table if items else "")


def failures(rows: Rows) -> str:
    """Draw and list the clients that gave no update or no score, by round, with the reasons."""
    updates, evaluations = _failures(rows, "failures"), _failures(rows, "evaluation_failures")
    parts = []
    if updates:
        late = sum(row.get("late", 0) for row in rows)
        description = f"{_number(updates, rows)}; {late:,} were too late."
        figure = plots.failed_clients(rows)
        drawn = page.plot(svg(figure, f"Clients without an update by round: {description}"))
        parts += [page.paragraph(description), drawn]
    if evaluations:
        parts.append(page.paragraph(f"Evaluations that failed: {_number(evaluations, rows)}."))
    if parts:
        table = page.settings_table("Failures", [*updates, *evaluations])
        parts.append(page.details("Reasons", table))
    return "".join(parts)


def _failures(rows: Rows, key: str) -> list[tuple[str, str]]:
    return [(f"Round {row['round']}", text) for row in rows for text in row.get(key) or ()]


def _number(items: Sequence[tuple[str, str]], rows: Rows) -> str:
    rounds = len({number for number, _ in items})
    return f"{len(items):,} in {rounds:,} of {len(rows):,} rounds"


def _span(values: np.ndarray) -> str:
    """Format the range of [clients] whole numbers: "62 to 95", or "2" if all are equal."""
    low, high = values.min(), values.max()
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def rounds_with(rows: Rows, key: str) -> Rows:
    """Keep the rounds that measured `key`."""
    return [row for row in rows if row.get(key) is not None]
