"""One plot per measure, in the papers' form.

`measure_panels` draws measures of a few series. This module draws the others: matrices, scatter
plots, landscapes and stacked classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedapp.config.measures import CLASS_ACCURACY_MEASURES
from fedapp.core.files import write_atomically
from fedapp.core.paths import folder_name
from fedapp.results import measures_file as store
from fedapp.results.class_accuracy import consistency
from fedapp.results.plots.circle_plot import unit_circle
from fedapp.results.plots.epoch_plot import local_training
from fedapp.results.plots.map_plots import feature_map, local_feature_map
from fedapp.results.plots.measure_panels import PANELS, Run, panels
from fedapp.results.plots.rendering import (
    INK,
    PAPER,
    class_colors,
    color_of,
    new_figure,
    png,
    styled,
)
from fedapp.results.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
FACTORS = {
    "weight_similarity": "class rows,\nbetween\nclasses",
    "inter_class": "features,\nbetween\nclasses",
    "intra_class": "features,\nwithin\na class",
    "prototype_weight": "feature\nand\nclass row",
}
MARKERS = "os^Dv"


def draw(word: str, runs: Sequence[Run]) -> Figure:
    """Draw one measure of some runs, with the rounds in which it was measured."""
    kept = [(label, [e for e in entries if word in e["measures"]]) for label, entries in runs]
    kept = [(label, entries) for label, entries in kept if entries]
    if word in PANELS:
        return panels(word, kept)
    return FORMS[word](kept)


@styled
def four_factors(runs: Sequence[Run]) -> Figure:
    """Draw the four factors of several runs as bars, or of one run class by class."""
    if len(runs) == 1:
        return _four_factors_of_one(runs[0][1][-1]["measures"]["four-factors"]["model"])
    figure = new_figure(4.8, 3.6 + 0.28 * len(runs))
    axes = figure.subplots()
    width = 0.8 / len(runs)
    for position, (label, entries) in enumerate(runs):
        values = [entries[-1]["measures"]["four-factors"]["model"][name] for name in FACTORS]
        positions = np.arange(len(FACTORS)) + (position - (len(runs) - 1) / 2) * width
        heights = [np.nan if value is None else value for value in values]
        bars = axes.bar(positions, heights, width * 0.92, color=color_of(position), label=label)
        rotation = 90 if len(runs) > 3 else 0  # horizontal labels would overlap
        texts = [f"{value:.2f}" for value in heights]
        axes.bar_label(bars, texts, padding=3, fontsize=8, rotation=rotation)
    axes.set_xticks(range(len(FACTORS)), list(FACTORS.values()), fontsize=9)
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.margins(y=0.16)
    axes.grid(visible=False, axis="x")
    axes.set(title="Four factors of the global model", ylabel="Mean cosine")
    figure.legend(loc="outside lower center", ncols=1)
    return figure


def _four_factors_of_one(model: Row) -> Figure:
    figure = new_figure(4.8, 9.0)
    first, second, third = figure.subplots(3, 1, height_ratios=(3, 3, 2))
    for axes, key, title in (
        (first, "weight_similarity", "Class rows"),
        (second, "inter_class", "Prototypes"),
    ):
        matrix = np.array(model[f"{key}_matrix"], dtype=float)
        image = axes.imshow(matrix, cmap="PuOr", vmin=-1, vmax=1)
        figure.colorbar(image, ax=axes, label="Cosine")
        axes.grid(visible=False)
        axes.set(title=f"{title} (mean cosine {_short(model[key])})")
        axes.set(xlabel="Class", ylabel="Class")
    pairs = (("intra_class", "feature - prototype"), ("prototype_weight", "prototype - class row"))
    for index, (key, label) in enumerate(pairs):
        values = np.array(model[f"{key}_by_class"], dtype=float)
        positions = np.arange(len(values)) + (index - 0.5) * 0.4
        third.bar(positions, values, 0.38, color=color_of(index), label=label)
    third.grid(visible=False, axis="x")
    third.axhline(0, color=INK, linewidth=0.8)
    third.set(title="Within classes", xlabel="Class", ylabel="Cosine")
    figure.legend(*third.get_legend_handles_labels(), loc="outside lower center")
    return figure


def _short(value: float | None, digits: str = "2f") -> str:
    """Return a figure with these digits; None: it was not finite."""
    return "not finite" if value is None else format(value, f".{digits}")


@styled
def divergence(runs: Sequence[Run]) -> Figure:
    """Draw each client's weight divergence over its distribution distance, in L1 norms.

    Of each run, the last measured round.
    """
    figure = new_figure(4.8, 3.6 + 0.28 * len(runs))
    axes = figure.subplots()
    for position, (label, entries) in enumerate(runs):
        measured = entries[-1]["measures"]["divergence"]
        clients, pearson = measured["clients"], measured["model"].get("pearson_l1")
        legend = label if pearson is None else f"{label}: Pearson {pearson:+.2f}"
        axes.plot(
            _column(clients, "distribution_distance_l1"), _column(clients, "weight_divergence_l1"),
            MARKERS[position % len(MARKERS)], color=color_of(position), markersize=6, alpha=0.75,
            label=legend,
        )  # fmt: skip
    axes.set(title="Weight divergence, by distribution distance")
    axes.set(
        xlabel="L1 distance of class shares: global accuracy, client",
        ylabel="L1 distance of weights: local, received",
    )
    figure.legend(loc="outside lower center", ncols=1)
    return figure


@styled
def landscape(runs: Sequence[Run]) -> Figure:
    """Draw the loss under random perturbations and, for one run, on a slice along the curvature."""
    single = len(runs) == 1
    figure = new_figure(4.8, 7.4 if single else 3.6 + 0.28 * len(runs))
    above = figure.subplots(2 if single else 1, 1, squeeze=False)[:, 0]
    for position, (label, entries) in enumerate(runs):
        rows = entries[-1]["measures"]["landscape"]["model"]["flatness"]
        losses = np.array(_column(rows, "loss"), dtype=float)
        rise = losses - losses[0]
        above[0].errorbar(
            _column(rows, "radius"), rise, _column(rows, "std"), marker="o",
            markersize=4, capsize=3, color=color_of(position), label=label,
        )  # fmt: skip
    above[0].set(title="Loss under Gaussian perturbation", ylabel="Rise of the test loss")
    above[0].set(xlabel="Distance / norm of the weights")
    if single:
        _draw_slice(above[1], runs[0][1][-1]["measures"]["landscape"]["model"])
    figure.legend(*above[0].get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return figure


def _draw_slice(axes: Axes, model: Row) -> None:
    """Draw contours of the loss along the two directions of largest curvature, around the model."""
    grid = np.array(model["slice"], dtype=float)
    steps = np.linspace(-model["span"], model["span"], len(grid))
    filled = axes.contourf(steps, steps, grid, levels=12, cmap="cividis")
    axes.figure.colorbar(filled, ax=axes, label="Test loss")
    axes.plot(0, 0, "*", color=PAPER, markersize=12, markeredgecolor=INK)
    axes.grid(visible=False)
    first, second = (_short(model[f"curvature_{name}"], "3g") for name in ("first", "second"))
    axes.set(title="Slice along the steepest curvature")
    axes.set(xlabel=f"First direction (eigenvalue {first})")
    axes.set(ylabel=f"Second ({second})")


@styled
def class_shares(rows: Sequence[Row]) -> Figure:
    """Draw each class's share of the accuracy by round, and the consistency of the shares.

    `rows` are the rows of metrics.jsonl that have class accuracies (FedNTD, figure 2).
    """
    history = np.nan_to_num(np.array([row["class_accuracy"] for row in rows], dtype=float))
    rounds = [row["round"] for row in rows]
    sums = np.maximum(history.sum(axis=1, keepdims=True), 1e-12)
    figure = new_figure(4.8, 5.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    count = history.shape[1]
    parts = above.stackplot(rounds, 100 * (history / sums).T, colors=class_colors(count))
    if count <= 10:
        names = [str(label) for label in range(count)]
        figure.legend(parts, names, loc="outside lower center", ncols=5, title="Class")
    above.set(title="Share of each class in the accuracy", ylabel="Share (%)", ylim=(0, 100))
    above.margins(x=0)
    below.plot(rounds[1:], consistency(history), color=color_of(0))
    below.set(title="Consistency with the evaluation before", xlabel="Round", ylabel="Cosine")
    below.set_ylim(top=1.02)
    return figure


def drawn(runs: Sequence[Run]) -> dict[str, Figure]:
    """Return a plot of every measure of any run, by the names of `plots_by_name`."""
    return {name: draw(word, some) for name, (word, some) in plots_by_name(runs).items()}


def plots_by_name(runs: Sequence[Run]) -> dict[str, tuple[str, Sequence[Run]]]:
    """Return each plot's measure and runs, by the plot's name.

    The name is the measure's name. A measure whose plot can show only one run has a plot for each
    run, whose name also contains the run's label.
    """
    words = dict.fromkeys(
        word for _, entries in runs for entry in entries for word in entry["measures"]
    )
    plots: dict[str, tuple[str, Sequence[Run]]] = {}
    for word in filter({*PANELS, *FORMS}.__contains__, words):
        having = [run for run in runs if any(word in entry["measures"] for entry in run[1])]
        if word in PICTURES and len(having) > 1:
            plots |= {f"{word} {run[0]}": (word, [run]) for run in having}
        else:
            plots[word] = (word, runs)
    return plots


def of_run(run: RunDirectory, entries: Sequence[Row], rows: Sequence[Row]) -> dict[str, Figure]:
    """Return the plots of one run, from its measured rounds and the rows of metrics.jsonl."""
    config = run.config()
    figures = drawn([(str(config.get("method", run.name)), entries)])
    words = {word for entry in entries for word in entry["measures"]}
    words |= set(str(config.get("analyses", "")).split())
    evaluated = [row for row in rows if row.get("class_accuracy") is not None]
    if len(evaluated) > 1 and words & set(CLASS_ACCURACY_MEASURES):
        figures["class-shares"] = class_shares(evaluated)
    return figures


def describe_choice(word: str, entries: Sequence[Row]) -> str:
    """Describe a measure's last numbers, for readers who cannot see the plot."""
    measured = [entry for entry in entries if word in entry["measures"]]
    if not measured:
        return f"{word}, round by round."
    last = measured[-1]
    numbers = store.figures({"measures": {word: last["measures"][word]}})
    values = ", ".join(f"{key.split('/')[1]} {value:.3g}" for key, value in numbers.items())
    when = f"{'in' if last['measures'][word].get('before') else 'after'} round {last['round']}"
    return f"{word} {when}: {values or 'see the plot'}."


def write_plots(run: RunDirectory) -> list[Path]:
    """Write analysis/MEASURE.png for every measure of a run; return the paths."""
    return write_figures(of_run(run, store.read(run), run.rounds()), run.path / "analysis")


def write_figures(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write figures as PNG files, named after them, to a folder, which is created."""
    if figures:
        folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{folder_name(name)}.png")
        write_atomically(paths[-1], png(figure))
    return paths


def _column(rows: Sequence[Row], name: str) -> list[float]:
    """Return a number of each row; NaN if missing, as in files of earlier versions."""
    return [np.nan if row.get(name) is None else row[name] for row in rows]


PICTURES = ("t-sne", "t-sne-locals", "unit-circle")  # whose plot shows one run
FORMS: dict[str, Callable[[Sequence[Run]], Figure]] = {
    "four-factors": four_factors,
    "divergence": divergence,
    "local-training": local_training,
    "landscape": landscape,
    "t-sne": feature_map,
    "t-sne-locals": local_feature_map,
    "unit-circle": unit_circle,
}
