"""Plots of measures with a few series: bars for one round, curves for several rounds.

A measure is a list of panels, and a panel is a set of series; both are data. Colours distinguish
runs, and dashes or shades distinguish series, so that the same code draws one run or a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedapp.results.plots.rendering import INK, color_of, new_figure, styled, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run = tuple[str, Sequence[Mapping[str, Any]]]  # a label and the measured rounds
DASHES = ("-", "--", ":")
SHADES = (1.0, 0.45, 0.2)  # of a run's colour, by series
BAR = 0.8  # of the distance between groups of bars


@dataclass(frozen=True)
class Panel:
    """One pair of axes: series by label, each given by a part ("mean" or "model") and a name."""

    title: str
    y_label: str
    series: Mapping[str, tuple[str, str]]
    scale: float = 1.0


def _pair(title: str, y_label: str, one: str, other: str, **keys: float) -> Panel:
    series = {"local models": ("mean", one), "received global model": ("mean", other)}
    return Panel(title, y_label, series, **keys)


def _sets(title: str, y_label: str, name: str, of_model: str = "") -> Panel:
    series = {
        "observed classes": ("mean", f"{name}_observed"),
        "unobserved classes": ("mean", f"{name}_unobserved"),
    }
    if of_model:
        series["global model, all classes"] = ("model", of_model)
    return Panel(title, y_label, series)


PANELS: dict[str, list[Panel]] = {
    "local-accuracy": [
        _pair("In-local accuracy", "Accuracy (%)", "in_local", "in_received", scale=100),
        _pair("Out-local accuracy", "Accuracy (%)", "out_local", "out_received", scale=100),
    ],
    "alignment": [
        _pair(
            "Alignment, observed classes", "cos(feature, class row)", "observed",
            "observed_received",
        ),
        _pair(
            "Alignment, unobserved classes", "cos(feature, class row)", "unobserved",
            "unobserved_received",
        ),
        Panel(
            "Alignment gap: local - received", "Difference of cosines",
            {
                "observed classes": ("mean", "observed_gap"),
                "unobserved classes": ("mean", "unobserved_gap"),
            },
        ),
    ],
    "drift": [
        _sets("Feature distance, local to received", "Euclidean distance", "distance"),
        _sets("Feature angle, local to received", "Angle (radians)", "angle"),
        _sets("Feature norm, local - received", "Difference of norms", "norm_difference"),
    ],
    "norms": [
        _sets("Norm of test features", "Mean norm", "feature", "feature_global"),
        _sets("Norm of the classifier's rows", "Mean norm", "weight", "weight_global"),
    ],
    "weight-alignment": [
        Panel(
            title, "Neurons that agree (%)",
            {
                "received and local models": ("mean", key),
                "received and new global model": ("model", f"{key}_global"),
            },
            100,
        )
        for title, key in (("Last hidden layer", "last_hidden"), ("Logits", "logits"))
    ],
}  # fmt: skip


@styled
def panels(word: str, runs: Sequence[Run]) -> Figure:
    """Draw a measure of `PANELS` for some runs, each with at least one measured round."""
    shown = PANELS[word]
    several = any(len(entries) > 1 for _, entries in runs)
    figure = new_figure(4.8, 0.4 + 2.5 * len(shown) + 0.28 * (len(runs) + 3))
    for axes, panel in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        (_curves if several else _bars)(axes, word, panel, runs)
        low, high = axes.get_ylim()
        if low < 0 < high:
            axes.axhline(0, color=INK, linewidth=0.8)
        if not several:
            room = 0.14 * (high - low)  # for the values at the ends of the bars
            axes.set_ylim(low - room if low < 0 else low, high + room)
        axes.set(title=panel.title, ylabel=panel.y_label)
    handles = _run_handles(runs) + _series_handles(shown, several)
    figure.legend(handles=handles, loc="outside lower center", ncols=1)
    return figure


def _run_handles(runs: Sequence[Run]) -> list[Any]:
    """Return legend entries for the runs' colours if there are several runs."""
    from matplotlib.patches import Patch

    named = [Patch(color=color_of(index), label=label) for index, (label, _) in enumerate(runs)]
    return named if len(runs) > 1 else []


def _series_handles(shown: Sequence[Panel], several: bool) -> list[Any]:
    """Return legend entries for the dashes or shades, in a colour that no run has."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    named: dict[int, dict[str, None]] = {}
    for panel in shown:
        for index, label in enumerate(panel.series):
            named.setdefault(index, {})[label] = None
    labels = {index: " / ".join(names) for index, names in named.items()}
    if several:
        return [Line2D([], [], color=INK, ls=DASHES[i], label=label) for i, label in labels.items()]
    return [Patch(color=INK, alpha=SHADES[i], label=label) for i, label in labels.items()]


def _value(entry: Mapping[str, Any], word: str, part: str, name: str) -> float:
    """Return a number of a round; NaN if it was not measured or is undefined."""
    value = (entry["measures"].get(word, {}).get(part) or {}).get(name)
    return math.nan if value is None else float(value)


def _bars(axes: Axes, word: str, panel: Panel, runs: Sequence[Run]) -> None:
    """Draw one group of bars per run, with the deviation over clients and the value."""
    width = BAR / len(panel.series)
    rotation = 90 if len(runs) * len(panel.series) > 9 else 0  # horizontal labels would overlap
    for position, (_, entries) in enumerate(runs):
        color = color_of(position)
        for index, (part, name) in enumerate(panel.series.values()):
            height = panel.scale * _value(entries[-1], word, part, name)
            error = panel.scale * _value(entries[-1], word, "std", name)
            shown = part == "mean" and math.isfinite(error)
            bars = axes.bar(
                position + (index - (len(panel.series) - 1) / 2) * width, height, width * 0.92,
                yerr=error if shown else None, color=color, alpha=SHADES[index],
                error_kw={"capsize": 3, "elinewidth": 1, "ecolor": INK},
            )  # fmt: skip
            text = "n/a" if math.isnan(height) else f"{height:.3g}"
            axes.bar_label(bars, [text], padding=3, fontsize=9, rotation=rotation)
    axes.set_xticks(range(len(runs)), [label for label, _ in runs], fontsize=10)
    axes.margins(y=0.2 if rotation else 0.1)
    axes.grid(visible=False, axis="x")


def _curves(axes: Axes, word: str, panel: Panel, runs: Sequence[Run]) -> None:
    """Draw one curve per run and series over the measured rounds."""
    for position, (_, entries) in enumerate(runs):
        rounds = [entry["round"] for entry in entries]
        for index, (part, name) in enumerate(panel.series.values()):
            values = [panel.scale * _value(entry, word, part, name) for entry in entries]
            axes.plot(
                rounds, values, DASHES[index], marker="o" if len(rounds) <= 12 else None,
                markersize=4, color=color_of(position),
            )  # fmt: skip
    whole_numbers(axes.xaxis)
    axes.set_xlabel("Round")
