"""The plot of features on the unit circle: a row per model, as rings and as curves.

The papers show the ring. The curves beside it have an axis for the densities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.results.plots.measure_panels import Run
from fedapp.results.plots.rendering import INK, class_colors, new_figure, number_scale, styled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

QUARTERS = (-180, -90, 0, 90, 180)
OWN, FOREIGN = "-", (0, (1.5, 1))  # dashes of classes in a model's data, and of other classes
MOST_NAMES = 10  # classes in the legend; more classes have a colour scale
TITLE = "angle of test features, by class\nsolid: classes in the model's data, dotted: others"


@styled
def unit_circle(runs: Sequence[Run]) -> Figure:
    """Draw the density of each class's feature angles in one run's last measured round."""
    measured = runs[0][1][-1]["measures"]["unit-circle"]["model"]
    count = len(measured["densities"])
    figure = new_figure(4.8, 1.3 + 1.75 * count)
    grid = figure.add_gridspec(count, 2, width_ratios=(2, 3))
    top = max(float(np.nanmax(np.array(d, dtype=float))) for d in measured["densities"].values())
    for row, (name, rows) in enumerate(measured["densities"].items()):
        densities = np.array(rows, dtype=float)
        dashes = [
            OWN if c in measured["observed"][name] else FOREIGN for c in range(len(densities))
        ]
        ring: Any = figure.add_subplot(grid[row, 0], projection="polar")
        _ring(ring, densities / top, dashes)
        curves = figure.add_subplot(grid[row, 1])
        _curves(curves, densities, dashes)
        curves.set(title=name, ylim=(0, 1.05 * top))
        curves.tick_params(labelbottom=row == count - 1)
    curves.set_xlabel("Angle of the feature (degrees)")
    figure.suptitle(f"{runs[0][0]}: {TITLE}", x=0.02, ha="left", fontsize="medium")
    _name_classes(figure, len(densities))
    return figure


def _ring(axes: Any, heights: np.ndarray, dashes: Sequence[Any]) -> None:
    """Draw densities [classes, points], 0 to 1, outwards from the unit circle."""
    around = np.radians(_angles(heights))
    axes.plot(around, np.ones_like(around), color=INK, linewidth=0.8)
    for color, dash, row in zip(class_colors(len(heights)), dashes, heights, strict=True):
        outwards = 1 + np.append(row, row[0])
        axes.fill_between(around, 1, outwards, color=color, alpha=0.25, linewidth=0)
        axes.plot(around, outwards, color=color, linestyle=dash, linewidth=1)
    axes.set(ylim=(0, 2), yticks=[])
    axes.set_xticks(np.radians([0, 90, 180, 270]), ["0", "90", "180", "-90"])
    axes.tick_params(pad=-2, labelsize=9)
    axes.spines["polar"].set_visible(False)


def _curves(axes: Any, densities: np.ndarray, dashes: Sequence[Any]) -> None:
    """Draw densities [classes, points] over the angle."""
    angles = _angles(densities)
    for color, dash, row in zip(class_colors(len(densities)), dashes, densities, strict=True):
        axes.plot(angles, np.append(row, row[0]), color=color, linestyle=dash, linewidth=1.3)
    axes.set(xlim=(-180, 180), xticks=QUARTERS)
    axes.set_ylabel("Density (per degree)", fontsize=9)
    axes.tick_params(labelsize=9)


def _angles(densities: np.ndarray) -> np.ndarray:
    """Return the angles of evenly spaced densities [classes, points], closed by the first."""
    return np.linspace(-180, 180, densities.shape[1] + 1)


def _name_classes(figure: Figure, count: int) -> None:
    """Add the classes' colours as a legend, or as a colour scale if there are many."""
    from matplotlib.lines import Line2D

    colors = class_colors(count)
    if count <= MOST_NAMES:
        lines = [Line2D([], [], color=color, label=str(c)) for c, color in enumerate(colors)]
        figure.legend(handles=lines, loc="outside lower center", ncols=5, title="Class")
        return
    scale = number_scale(colors)
    figure.colorbar(scale, ax=figure.axes, label="Class", location="bottom", aspect=40)
