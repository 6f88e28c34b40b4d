"""The plot of accuracy during local training: curves over the epochs of one round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.results.plots.measure_panels import Run
from fedapp.results.plots.rendering import INK, color_of, new_figure, styled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORD = "local-training"
TITLES = {
    "in_local": "In-local accuracy",
    "out_local": "Out-local accuracy",
    "test": "Accuracy on the whole test set",
}


@styled
def local_training(runs: Sequence[Run]) -> Figure:
    """Draw accuracies over local epochs in each run's last measured round (FedNTD, figure 6)."""
    figure = new_figure(4.8, 7.6 + 0.28 * (len(runs) + 3))
    grid = figure.subplots(3, 1, sharex=True)
    for axes, (name, title) in zip(grid, TITLES.items(), strict=True):
        for position, (_, entries) in enumerate(runs):
            measured = entries[-1]["measures"][WORD]
            _with_spread(axes, measured, name, color_of(position))
            if name == "test":
                heights = _by_epoch(measured["model"], "mean")
                axes.plot(heights, "--", color=color_of(position))
        axes.set(title=title, ylabel="Accuracy (%)")
    grid[-1].set_xlabel("Local epochs done in the round")
    grid[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.legend(handles=_handles(runs), loc="outside lower center", ncols=1)
    return figure


def _with_spread(axes: Axes, measured: Mapping[str, Any], name: str, color: str) -> None:
    """Draw the mean over clients and a band of one standard deviation around it."""
    heights, spread = _by_epoch(measured["mean"], name), _by_epoch(measured["std"], name)
    axes.plot(heights, color=color)
    low, high = np.clip(heights - spread, 0, 100), np.clip(heights + spread, 0, 100)
    axes.fill_between(range(len(heights)), low, high, color=color, alpha=0.12, linewidth=0)


def _by_epoch(values: Mapping[str, Any], name: str) -> np.ndarray:
    """Return a number after 0, 1, ... epochs, in per cent; NaN if it is undefined."""
    count = sum(key.rpartition("_")[0] == name for key in values)
    return 100 * np.array([values[f"{name}_{epoch}"] for epoch in range(count)], dtype=float)


def _handles(runs: Sequence[Run]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    named = [Patch(color=color_of(i), label=label) for i, (label, _) in enumerate(runs)]
    return [
        *(named if len(runs) > 1 else []),
        Line2D([], [], color=INK, label="mean of the local models' accuracies"),
        Patch(color=INK, alpha=0.12, label="their standard deviation over clients"),
        Line2D([], [], color=INK, linestyle="--", label="accuracy of their averaged model"),
    ]
