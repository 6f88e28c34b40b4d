"""The plots of t-SNE maps: models side by side, or all local models on one pair of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.results.plots.measure_panels import Run
from fedapp.results.plots.rendering import (
    INK,
    class_colors,
    class_scale,
    new_figure,
    number_scale,
    styled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

MOST_NAMES = 20  # local models in the legend; more models have a colour scale


@styled
def feature_map(runs: Sequence[Run]) -> Figure:
    """Draw the joint map of test features: one panel per model, coloured by class."""
    measured = runs[0][1][-1]["measures"]["t-sne"]["model"]
    labels = np.array(measured["labels"])
    rows = (len(measured["points"]) + 1) // 2
    figure = new_figure(4.8, 0.8 + 2.3 * rows)
    grid = figure.subplots(rows, 2, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (name, points) in zip(grid, measured["points"].items(), strict=False):
        drawn = _by_class(axes, np.array(points, dtype=float), labels)
        axes.set(title=name)
    for axes in grid[len(measured["points"]) :]:
        axes.set_axis_off()
    figure.colorbar(drawn, ax=list(grid), label="Class", location="bottom", aspect=40)
    figure.suptitle(f"t-SNE of test features, {runs[0][0]}", x=0.02, ha="left", fontweight="bold")
    return figure


@styled
def local_feature_map(runs: Sequence[Run]) -> Figure:
    """Draw the joint map of all local models twice: coloured by local model and by class."""
    measured = runs[0][1][-1]["measures"]["t-sne-locals"]["model"]
    figure = new_figure(4.8, 9.6)
    above, below = figure.subplots(2, 1, sharex=True, sharey=True)
    points = {name: np.array(xy, dtype=float) for name, xy in measured["points"].items()}
    _by_model(figure, above, points)
    labels = np.tile(measured["labels"], len(points))
    drawn = _by_class(below, np.concatenate(list(points.values())), labels)
    below.set(title="By class")
    figure.colorbar(drawn, ax=below, label="Class", location="bottom", aspect=40)
    figure.suptitle(f"t-SNE of test features, {runs[0][0]}", x=0.02, ha="left", fontweight="bold")
    return figure


def _by_model(figure: Any, axes: Any, points: dict[str, np.ndarray]) -> None:
    """Draw each local model's points in its own colour, and the global model's on top."""
    names = [name for name in points if name != "global"]
    colors = class_colors(len(names))
    for name, color in zip(names, colors, strict=True):
        axes.scatter(*points[name].T, s=5, color=color, linewidths=0, label=name)
    axes.scatter(*points["global"].T, s=9, marker="x", color=INK, linewidths=0.7, label="global")
    axes.set(title="By local model", xticks=[], yticks=[])
    axes.grid(visible=False)
    if len(names) <= MOST_NAMES:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=4, fontsize=8, markerscale=2,
            columnspacing=1, handletextpad=0.2,
        )  # fmt: skip
        return
    label = "Local model, in the order of client numbers (cross: global)"
    figure.colorbar(number_scale(colors), ax=axes, label=label, location="bottom", aspect=40)


def _by_class(axes: Any, points: np.ndarray, labels: np.ndarray) -> Any:
    """Draw points [n, 2] in the colours of their classes; return the artist for a colour bar."""
    drawn = axes.scatter(*points.T, c=labels, s=7, **class_scale(int(labels.max()) + 1))
    axes.set(xticks=[], yticks=[])
    axes.grid(visible=False)
    return drawn
