"""Learning curves: accuracy and loss over rounds, of one run, of several, and of groups of runs.

Each function draws one matplotlib figure, which `rendering` converts to a file or a part of a page.
Figures are narrow with large type, so that they are readable on a phone. Curves differ in dash and
in colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.results.formatting import field_head, percent
from fedapp.results.outcome import best_round
from fedapp.results.plots.rendering import (
    BLUE,
    RED,
    line_style,
    new_figure,
    plain_log_ticks,
    styled,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

GLOBAL_MODEL = "global model"


@styled
def curves(rows: Sequence[Row], title: str, tested: str = GLOBAL_MODEL) -> Figure:
    """Draw accuracy above loss over one run's rounds (curves.png); `tested` names the model."""
    figure = new_figure(6.0, 6.6)
    above, below = figure.subplots(2, 1, sharex=True)
    _draw_accuracy(above, rows, tested)
    _draw_loss(below, rows, tested)
    above.set_xlabel("")
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
    return figure


@styled
def accuracy_curve(rows: Sequence[Row], tested: str = GLOBAL_MODEL) -> Figure:
    """Draw the test accuracy of the model `tested` over the rounds of one run."""
    figure = new_figure(4.8, 3.4)
    _draw_accuracy(figure.subplots(), rows, tested)
    return figure


@styled
def loss_curve(rows: Sequence[Row], tested: str = GLOBAL_MODEL) -> Figure:
    """Draw test and training loss over the rounds of one run."""
    figure = new_figure(4.8, 3.4)
    _draw_loss(figure.subplots(), rows, tested)
    return figure


@styled
def metric_curve(rows: Sequence[Row], key: str) -> Figure:
    """Draw a number of metrics.jsonl, such as a method's own metric, over the rounds of one run."""
    figure = new_figure(4.8, 3.4)
    axes = figure.subplots()
    is_share = "accuracy" in key
    rounds, values = _points(rows, key, scale=100 if is_share else 1)
    _draw_line(axes, rounds, values, BLUE, "-", key)
    _finish(axes, field_head(key), "Accuracy (%)" if is_share else "")
    return figure


@styled
def compare_curves(runs: Sequence[tuple[str, Sequence[Row]]]) -> Figure:
    """Draw the test accuracy of several runs, given as (label, rows), on the same axes."""
    figure = new_figure(6.0, 4.4 + 0.12 * len(runs))
    axes = figure.subplots()
    highest = 0.0
    for index, (label, rows) in enumerate(runs):
        rounds, values = _points(rows, "accuracy", scale=100)
        color, dash = line_style(index)
        _draw_line(axes, rounds, values, color, dash, label)
        highest = max([highest, *values])
    _finish_accuracy(axes, "Test accuracy", highest)
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=1 if len(runs) < 3 else 2)
    return figure


@styled
def group_curves(groups: Sequence[tuple[str, Sequence[Sequence[Row]]]]) -> Figure:
    """Draw the mean test accuracy of each group of runs, with a band of one standard deviation.

    Groups are given as (label, the rows of each run). The mean covers the rounds that all runs of a
    group have evaluated; the band needs two runs.
    """
    figure = new_figure(6.0, 4.4 + 0.12 * len(groups))
    axes = figure.subplots()
    drawn: list[float] = []
    for index, (label, runs) in enumerate(groups):
        rounds, values = _common_points(runs)
        color, dash = line_style(index)
        mean = values.mean(axis=0)
        several = f", {len(runs)} runs" if len(runs) > 1 else ""
        _draw_line(axes, rounds, mean.tolist(), color, dash, f"{label}{several}")
        if len(runs) > 1:
            spread = values.std(axis=0, ddof=1)
            axes.fill_between(rounds, mean - spread, mean + spread, color=color, alpha=0.18, lw=0)
        drawn += values.ravel().tolist()
    spread_shown = any(len(runs) > 1 for _, runs in groups)
    title = "Mean test accuracy, ± one standard deviation" if spread_shown else "Test accuracy"
    _finish_accuracy(axes, title, max(drawn, default=0))
    if drawn:
        axes.set_ylim(bottom=max(0, 5 * math.floor(min(drawn) / 5)))
    if axes.lines:
        figure.legend(loc="outside lower center", ncols=1 if len(groups) < 3 else 2)
    return figure


def _common_points(runs: Sequence[Sequence[Row]]) -> tuple[list[int], np.ndarray]:
    """Return the rounds that all runs have evaluated, and accuracies in percent, [runs, rounds]."""
    accuracies = [dict(zip(*_points(rows, "accuracy", scale=100), strict=True)) for rows in runs]
    common = set(accuracies[0]).intersection(*accuracies) if accuracies else set()
    rounds = sorted(common)
    return rounds, np.array([[each[number] for number in rounds] for each in accuracies])


def _draw_accuracy(axes: Axes, rows: Sequence[Row], tested: str) -> None:
    rounds, values = _points(rows, "accuracy", scale=100)
    _draw_line(axes, rounds, values, BLUE, "-", tested)
    if best := best_round(rows):
        label = f"best: {percent(best['accuracy'])} in round {best['round']}"
        position = best["round"], 100 * best["accuracy"]
        axes.plot(*position, "*", color=RED, markersize=13, label=label)
        axes.legend(loc="lower right")
    _finish_accuracy(axes, "Test accuracy", max(values, default=0))


def _finish_accuracy(axes: Axes, title: str, highest: float) -> None:
    """Start the axis at 0 and leave space above the highest value (%), at most up to 103 %."""
    axes.set_ylim(0, min(103, 1.12 * highest) if highest else 103)
    _finish(axes, title, "Accuracy (%)")


def _draw_loss(axes: Axes, rows: Sequence[Row], tested: str) -> None:
    test, train = _points(rows, "loss"), _points(rows, "train_loss")
    _draw_line(axes, *test, BLUE, "-", f"test, {tested}")
    _draw_line(axes, *train, RED, "--", "training, mean of clients")
    values = test[1] + train[1]
    if values:
        axes.legend(loc="best")
    if values and min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
        _finish(axes, "Loss", "Loss (log scale)")
    else:
        _finish(axes, "Loss", "Loss")


def _draw_line(
    axes: Axes, rounds: list[int], values: list[float], color: str, dash: str, label: str
) -> None:
    """Draw one curve, with a dot per value if there are few; draw nothing without values."""
    if values:
        marker = "o" if len(values) <= 12 else None
        axes.plot(rounds, values, dash, color=color, marker=marker, markersize=4, label=label)


def _finish(axes: Axes, title: str, y_label: str) -> None:
    """Set title, labels and whole rounds of the axes; mark an empty plot as not measured."""
    axes.set(title=title, xlabel="Round", ylabel=y_label)
    whole_numbers(axes.xaxis)
    if not any(np.size(line.get_xdata()) for line in axes.lines):
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "not measured in this run", ha="center", transform=axes.transAxes)


def _points(rows: Sequence[Row], key: str, scale: float = 1) -> tuple[list[int], list[float]]:
    """Return the rounds that measured `key`, and its finite values times `scale`."""
    kept = [
        (row["round"], scale * row[key])
        for row in rows
        if row.get(key) is not None and math.isfinite(row[key])
    ]
    return [number for number, _ in kept], [value for _, value in kept]
