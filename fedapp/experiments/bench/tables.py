"""The benchmark's results for readers: Markdown tables and one plot.

Parts that were not measured are left out. The panels of ratios have a line at 1, the cost of the
arithmetic alone, or of FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedapp.methods.table import METHODS
from fedapp.results.formatting import markdown_table
from fedapp.results.plots.rendering import BLUE, RED, color_of, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]

LABEL, LINE = 9, 0.19  # points of all text but titles; inches per line of labels


def markdown(results: Results) -> str:
    """Return the benchmark's results as Markdown."""
    sections = [
        _section(
            "FL tax: images/s of simulated rounds over those of the plain loop",
            _tax(results) if "fl_tax_by_method" in results else [],
        ),
        _section("Seconds per round over FedAvg's, simulated", _by_model(results, "round_cost")),
        _section("Method cost: seconds per round over FedAvg's, in one process", _methods(results)),
        _section(
            "Precision: seconds per round over those of FedAvg in fp32, in one process",
            _key_values(results, "precision_cost"),
        ),
        _section("Start-up", _key_values(results, "startup")),
        _section("Messages: rounds without training", _messages(results)),
        _section("Aggregation, GB/s", _key_values(results, "aggregation")),
        _section("Scale: one run each", _scale(results)),
        _section("1,000 clients, batch 10", _key_values(results, "job")),
        _section("GPU", _gpu(results)),
        _section("Environment", _key_values(results, "environment")),
    ]
    return "\n\n".join(section for section in sections if section)


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return markdown_table(columns, [[_text(cell) for cell in row] for row in rows])


def _tax(results: Results) -> list[str]:
    keeps_memory = "of a plain loop that keeps freed memory, as the app does"
    meanings = {
        "fl_tax_tuned": keeps_memory,
        "fl_tax_workers": "with `fedapp run`, not `flwr run`",
        "fl_tax_workers_tuned": f"with `fedapp run`, {keeps_memory}",
    }
    notes = [
        f"- {model}: {_text(value)} {meaning}"
        for key, meaning in meanings.items()
        for model, value in results.get(key, {}).items()
    ]
    return [*_by_model(results, "fl_tax_by_method"), "", *notes]


def _by_model(results: Results, key: str) -> list[str]:
    """Return one row per model and one column per method."""
    if key not in results:
        return []
    methods = _methods_of(results[key])
    rows = [[model, *map(row.get, methods)] for model, row in results[key].items()]
    return _table(["model", *methods], rows)


def _methods_of(by_model: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the methods of all models, in order."""
    return list(dict.fromkeys(method for row in by_model.values() for method in row))


def _methods(results: Results) -> list[str]:
    if "method_cost" not in results:
        return []
    skipped = [
        f"- {name} was left out: {reason}" for name, reason in results["method_skipped"].items()
    ]
    lines = _table(["method", "ratio"], list(results["method_cost"].items()))
    return [*lines, "", *skipped] if skipped else lines


def _messages(results: Results) -> list[str]:
    if "messages" not in results:
        return []
    columns = ["model, MB", "s per round", "s per client", "stock Flower, s per round", "ratio"]
    return _table(columns, [[mb, *row.values()] for mb, row in results["messages"].items()])


def _scale(results: Results) -> list[str]:
    if not results.get("scale"):
        return []
    columns = [name.replace("_", " ") for name in results["scale"][0]]
    return _table(columns, [list(point.values()) for point in results["scale"]])


def _gpu(results: Results) -> list[str]:
    gpu = results.get("gpu")
    if gpu is None or isinstance(gpu, str):
        return [f"GPU: {gpu}."] if gpu else []
    return [
        *_tax(gpu), "", *_by_model(gpu, "round_cost"), "",
        *(line for key in ("precision_cost", "paper", "memory") for line in _key_values(gpu, key)),
    ]  # fmt: skip


def _key_values(results: Results, key: str) -> list[str]:
    return [f"- {name.replace('_', ' ')}: {_text(v)}" for name, v in results.get(key, {}).items()]


@styled
def draw(results: Results) -> Figure:
    """Draw the results: one panel per part, whose title states what it shows."""
    panels: dict[str, tuple[str, Callable[[Axes, Any], None]]] = {
        "fl_tax_by_method": ("Training speed of simulated rounds", _draw_tax),
        "method_cost": ("Cost of each method", _draw_methods),
        "messages": ("Rounds of ten clients that do not train", _draw_messages),
        "scale": ("A round costs what its cohort costs", _draw_scale),
    }
    drawn = [key for key in panels if results.get(key)]
    heights = [1.6 + LINE * max(8, len(results[key])) for key in drawn] or [3.6]
    figure = new_figure(7.0, 0.4 + sum(heights))
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, key in zip(grid, drawn, strict=False):
        title, function = panels[key]
        function(axes, results[key])
        axes.set_title(title, fontsize=LABEL + 2)
        axes.tick_params(labelsize=LABEL)
        axes.xaxis.label.set_size(LABEL)
        axes.yaxis.label.set_size(LABEL)
    return figure


def _draw_tax(axes: Axes, tax: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a row per model with a dot per method, the fastest model first."""
    models = sorted(tax, key=lambda model: max(tax[model].values()))
    for index, method in enumerate(_methods_of(tax)):
        measured = [(tax[m][method], row) for row, m in enumerate(models) if method in tax[m]]
        values, rows = zip(*measured, strict=True)
        axes.plot(values, rows, "os^Dv"[index % 5], color=color_of(index), label=method)
    axes.axvline(1.0, color=RED, linestyle="--", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(-0.6, len(models) - 0.4)
    axes.set_xlabel("Images/s over those of a plain PyTorch loop")
    axes.legend(loc="lower left", fontsize=LABEL)


def _draw_methods(axes: Axes, cost: Mapping[str, float]) -> None:
    names = sorted(cost, key=lambda name: cost[name])
    _draw_bars(axes, [_with_models(name) for name in names], [cost[name] for name in names])
    axes.axvline(1.0, color=RED, linestyle="--", linewidth=1)
    axes.set_xlabel("Seconds per round over FedAvg's")


def _with_models(method: str) -> str:
    """Return a method's name; for clients with own models, which are other networks, say so."""
    row = METHODS.get(method)
    return f"{method} (own models)" if row is not None and row.heterogeneous else method


def _draw_messages(axes: Axes, messages: Mapping[str, Mapping[str, float]]) -> None:
    sizes = [float(size) for size in messages]
    for key, color, label in (("seconds", BLUE, "fedapp"), ("stock_seconds", RED, "stock Flower")):
        axes.plot(sizes, [row[key] for row in messages.values()], "o-", color=color, label=label)
    axes.set(xlabel="Size of the model, MB", ylabel="Seconds per round", ylim=(0, None))
    axes.legend(fontsize=LABEL)


def _draw_scale(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    ordered = sorted(points, key=lambda point: point["seconds"])
    labels = [f"{p['cohort']:,} of {p['clients']:,}, workers: {p['workers']}" for p in ordered]
    _draw_bars(axes, labels, [point["seconds"] for point in ordered])
    axes.set_xlabel("Seconds per round of so many of all clients")


def _draw_bars(axes: Axes, labels: Sequence[str], values: Sequence[float]) -> None:
    """Draw a bar per label, upwards in the given order, with its value."""
    bars = axes.barh(range(len(labels)), values, color=BLUE)
    axes.bar_label(bars, fmt="{:.2g}", padding=3, fontsize=LABEL)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.7, len(labels) - 0.3)
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
