"""Bar plots and cells of a run: accuracy of classes and clients, label distribution, failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedapp.results.formatting import percent
from fedapp.results.plots.rendering import BLUE, PAPER, RED, new_figure, styled, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUES = ("#d6eaf6", BLUE, "#00304d")  # from few to many images, all visible on PAPER
MAX_CLIENTS = 200  # the most columns that are distinguishable in a label distribution
MAX_LABELS = 25  # the most classes whose names fit beside an axis


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
    _draw_cells(axes, shown)
    _label_cells(axes.set_xticks, [str(client) for client in range(shown.shape[1])], limit=10)
    _label_cells(axes.set_yticks, class_names, limit=MAX_LABELS)
    axes.invert_yaxis()
    axes.grid(visible=False)
    some = f" (first {MAX_CLIENTS} of {len(counts):,})" if len(counts) > MAX_CLIENTS else ""
    axes.set(title=f"Labels of each client{some}", xlabel="Client", ylabel="Class")
    return figure


def _draw_cells(axes: Axes, counts: np.ndarray) -> None:
    """Colour the cells of [classes, clients] by count, leave empty cells blank, add a scale."""
    from matplotlib.colors import LinearSegmentedColormap

    gaps = max(counts.shape) <= 50  # gaps would hide smaller cells
    mesh = axes.pcolormesh(
        np.ma.masked_equal(counts, 0),
        cmap=LinearSegmentedColormap.from_list("blues", BLUES, N=32),
        vmin=0,
        vmax=max(1, counts.max(initial=0)),
        rasterized=counts.size > 2000,  # as vectors they would make the page large
        edgecolor=PAPER if gaps else "none",
        linewidth=0.5 if gaps else 0,
    )
    scale = axes.figure.colorbar(mesh, ax=axes, label="Training images", format="{x:,.0f}")
    if scale.solids is not None:
        scale.solids.set(edgecolor="face")  # otherwise hairlines appear between its steps


def _label_cells(set_ticks: Callable[..., Any], labels: Sequence[str], limit: int) -> None:
    """Label the middle of every cell, or of every k-th if there are more than `limit`."""
    step = math.ceil(len(labels) / limit) or 1
    set_ticks([index + 0.5 for index in range(0, len(labels), step)], labels[::step])


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
