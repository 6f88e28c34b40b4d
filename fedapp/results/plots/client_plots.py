"""Bar plots and cells of a run: classes, clients, labels, confusions, times and failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedapp.results.formatting import percent
from fedapp.results.plots.rendering import (
    BLUE,
    INK,
    PAPER,
    RED,
    new_figure,
    styled,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUES = ("#d6eaf6", BLUE, "#00304d")  # from few to many images, all visible on PAPER
MAX_CLIENTS = 200  # the most columns that are distinguishable in a label distribution
MAX_LABELS = 25  # the most classes whose names fit beside an axis
MAX_NAMES, MAX_NUMBERS = 100, 12  # the most classes whose names, or numbers, fit a larger figure
LONGEST = 24  # characters of a class name at a confusion matrix


@styled
def class_accuracy(values: Sequence[float | None], class_names: Sequence[str]) -> Figure:
    """Draw one bar per class: accuracies as fractions, None for a class without test images."""
    count = len(values)
    figure = new_figure(4.8, 1.2 + count * (0.28 if count <= MAX_LABELS else 0.18))
    axes = figure.subplots()
    heights = [0.0 if value is None else 100 * value for value in values]
    bars = axes.barh(range(count), heights, color=BLUE)
    axes.bar_label(bars, [percent(value) for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(count), class_names, fontsize=10 if count <= MAX_LABELS else 8)
    axes.set(xlim=(0, 118), xticks=range(0, 101, 20), ylim=(count - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    axes.set(title="Test accuracy of each class", xlabel="Accuracy (%)", ylabel="Class")
    return figure


@styled
def label_distribution(class_counts: npt.ArrayLike, class_names: Sequence[str]) -> Figure:
    """Draw how many training images each client has of each class.

    Args:
        class_counts: images per client and class, [clients, classes]; clients after the first
            200 are left out, and the title says so.
        class_names: one name per class.
    """
    counts = np.asarray(class_counts)
    shown = counts[:MAX_CLIENTS].T
    figure = new_figure(4.8, 2.6 + 0.1 * min(len(class_names), MAX_LABELS))
    axes = figure.subplots()
    axes.set_facecolor(PAPER)
    _draw_cells(axes, shown, max(1, counts.max(initial=0)), "Training images")
    _label_cells(axes.set_xticks, [str(client) for client in range(shown.shape[1])], limit=10)
    _label_cells(axes.set_yticks, class_names, limit=MAX_LABELS)
    axes.invert_yaxis()
    axes.grid(visible=False)
    some = f" (first {MAX_CLIENTS} of {len(counts):,})" if len(counts) > MAX_CLIENTS else ""
    axes.set(title=f"Labels of each client{some}", xlabel="Client", ylabel="Class")
    return figure


@styled
def confusion(matrix: npt.ArrayLike, class_names: Sequence[str], title: str) -> Figure:
    """Draw which share of each class's images a model takes for which class.

    Args:
        matrix: images of class i (row) that are taken for class j (column), [classes, classes]; the
            row of a class without images stays blank.
        class_names: one name per class; of more than 100 some are left out.
        title: of the figure.
    """
    counts = np.asarray(matrix)
    shares = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    names = [n if len(n) <= LONGEST else f"{n[: LONGEST - 1]}…" for n in class_names]
    size = 10 if len(names) <= MAX_LABELS else 7
    side = 3.6 + 0.11 * min(len(names), MAX_NAMES) + 0.008 * size * max(map(len, names))
    figure = new_figure(side + 0.8, side)
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
    axes = figure.subplots()
    axes.set_facecolor(PAPER)
    _draw_cells(axes, shares, 100, "Share of the class's images (%)")
    if len(names) <= MAX_NUMBERS:
        _number_cells(axes, shares)
    turned = 90 if max(map(len, names)) > 3 else 0
    _label_cells(axes.set_xticks, names, limit=MAX_NAMES, fontsize=size, rotation=turned)
    _label_cells(axes.set_yticks, names, limit=MAX_NAMES, fontsize=size)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlabel="Taken for", ylabel="Class", aspect="equal")
    return figure


def _number_cells(axes: Axes, shares: np.ndarray) -> None:
    """Write every share (%) that is not 0 into its cell, white on dark cells."""
    for row, column in np.argwhere(shares):
        share = shares[row, column]
        text = f"{share:.0f}" if share >= 0.5 else "<1"
        place = float(column) + 0.5, float(row) + 0.5
        color = PAPER if share > 40 else INK
        axes.text(*place, text, color=color, ha="center", va="center", fontsize=9)


def _draw_cells(axes: Axes, counts: np.ndarray, largest: float, label: str) -> None:
    """Colour the cells of [rows, columns] by value, leave empty cells blank, add a scale."""
    from matplotlib.colors import LinearSegmentedColormap

    gaps = max(counts.shape) <= 50  # gaps would hide smaller cells
    mesh = axes.pcolormesh(
        np.ma.masked_equal(counts, 0),
        cmap=LinearSegmentedColormap.from_list("blues", BLUES, N=32),
        vmin=0,
        vmax=largest,
        rasterized=counts.size > 2000,  # as vectors they would make the page large
        edgecolor=PAPER if gaps else "none",
        linewidth=0.5 if gaps else 0,
    )
    scale = axes.figure.colorbar(mesh, ax=axes, label=label, format="{x:,.0f}", aspect=30)
    if scale.solids is not None:
        scale.solids.set(edgecolor="face")  # otherwise hairlines appear between its steps


def _label_cells(
    set_ticks: Callable[..., Any], labels: Sequence[str], limit: int, **style: Any
) -> None:
    """Label the middle of every cell, or of every k-th if there are more than `limit`."""
    step = math.ceil(len(labels) / limit) or 1
    set_ticks([index + 0.5 for index in range(0, len(labels), step)], labels[::step], **style)


@styled
def client_accuracy(values: npt.ArrayLike) -> Figure:
    """Draw how many clients have which accuracy; `values` are fractions, one per client."""
    accuracies = 100 * np.asarray(values)
    mean = accuracies.mean()
    figure = new_figure(4.8, 3.4)
    axes = figure.subplots()
    axes.hist(accuracies, bins=np.arange(0, 101, 5).tolist(), color=BLUE, edgecolor=PAPER)
    axes.axvline(mean, color=RED, linestyle="--", label=f"mean: {mean:.1f} %")
    axes.set(title="Accuracy of the clients", xlabel="Accuracy (%)", ylabel="Clients")
    axes.set(xlim=(0, 100))
    whole_numbers(axes.yaxis)
    axes.legend(loc="upper left")
    return figure


@styled
def round_times(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw how long each round waited for clients, and how long server and tests took."""
    rounds = [row["round"] for row in rows]
    waits, tests = (
        np.array([row[key] for row in rows]) for key in ("wait_seconds", "test_seconds")
    )
    rest = np.array([row["seconds"] for row in rows]) - waits - tests
    figure = new_figure(4.8, 3.0)
    axes = figure.subplots()
    bottom = np.zeros(len(rows))
    parts = (("waiting for clients", waits, BLUE), ("tests", tests, RED), ("server", rest, INK))
    for label, seconds, color in parts:
        axes.bar(rounds, seconds, 1.0, bottom=bottom, color=color, label=label)
        bottom += seconds
    axes.set(title="Time of the rounds", xlabel="Round", ylabel="Seconds")
    axes.set(xlim=(min(rounds) - 0.6, max(rounds) + 0.6))
    whole_numbers(axes.xaxis)
    axes.legend(loc="best")
    return figure


@styled
def failed_clients(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw how many clients gave no update in each round: too late, or failed otherwise."""
    rounds = [row["round"] for row in rows]
    late = np.array([row.get("late", 0) for row in rows])
    other = np.array([row["failed"] for row in rows]) - late
    figure = new_figure(4.8, 3.0)
    axes = figure.subplots()
    axes.bar(rounds, other, 1.0, color=RED, label="failed")
    axes.bar(rounds, late, 1.0, bottom=other, color=BLUE, label="too late")
    axes.set(title="Clients without an update", xlabel="Round", ylabel="Clients")
    axes.set(xlim=(min(rounds) - 0.6, max(rounds) + 0.6))
    whole_numbers(axes.xaxis, axes.yaxis)
    axes.legend(loc="best")
    return figure
