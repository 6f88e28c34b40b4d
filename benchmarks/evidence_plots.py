"""The figures of docs/evidence: our accuracy over rounds and the published final accuracy."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fedapp.results.plots.rendering import OKABE_ITO, color_of, new_figure, styled

Points = Sequence[tuple[int, float]]  # round, accuracy in percent
COLORS = len(OKABE_ITO)  # further curves are dashed
WINDOW = 10  # rounds in a running mean
TITLE = 60  # characters in a line of the title
LONG = 40  # characters of a label, too many for two columns of labels
LINE = 80  # characters in a line of a label


@styled
def published_beside_curves(
    curves: Mapping[str, Sequence[Points]], published: Mapping[str, float], title: str
) -> Figure:
    """Draw runs (thin), their running means (bold) and the published ends (dotted), by legend."""
    labels = {
        name: textwrap.fill(
            f"{name} (published {published[name]:g})" if name in published else name, LINE
        )
        for name in curves
    }
    lines = sum(label.count("\n") + 1 for label in labels.values())
    figure = new_figure(7.0, 4.6 + 0.1 * lines)
    axes = figure.subplots()
    for index, (name, runs) in enumerate(curves.items()):
        color, dash = color_of(index), "-" if index < COLORS else "--"
        for points in runs:
            rounds, values = (np.array(part) for part in zip(*points, strict=True))
            axes.plot(rounds, values, color=color, alpha=0.25, linewidth=0.8)
            axes.plot(*_running_mean(rounds, values), dash, color=color)
        axes.plot([], [], dash, color=color, label=labels[name])
        if name in published:
            axes.axhline(published[name], color=color, linestyle=":", linewidth=1.5)
    axes.set(xlabel="Round", ylabel="Test accuracy (%)", ylim=(0, None))
    axes.set_title(textwrap.fill(title, TITLE, break_on_hyphens=False))
    two = len(curves) > 2 and max(map(len, labels.values())) < LONG
    figure.legend(loc="outside lower center", ncols=2 if two else 1, fontsize=10)
    return figure


def _running_mean(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of the last `WINDOW` rounds' values, from round `WINDOW` on."""
    ends = rounds[rounds >= WINDOW]
    means = [values[(end - WINDOW < rounds) & (rounds <= end)].mean() for end in ends]
    return (ends, np.array(means)) if means else (rounds, values)
