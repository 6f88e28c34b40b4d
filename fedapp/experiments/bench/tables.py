"""The benchmark's results for readers: Markdown tables and one plot.

Parts that were not measured are left out. The plot of ratios has a line at 1, the cost of the
arithmetic alone, or of FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedapp.results.formatting import markdown_table
from fedapp.results.plots.rendering import BLUE, RED, color_of, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Results = Mapping[str, Any]


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
    tuned = results.get("fl_tax_tuned", {})
    notes = [
        f"- {model}: {_text(value)} of a plain loop that keeps freed memory, as the app does"
        for model, value in tuned.items()
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
    """Draw the results, with one panel per part."""
    panels: list[tuple[str, Callable[[Axes, Any], None]]] = [
        ("fl_tax_by_method", _draw_tax),
        ("method_cost", _draw_methods),
        ("messages", _draw_messages),
        ("scale", _draw_scale),
    ]
    drawn = [(key, function) for key, function in panels if results.get(key)]
    heights = [max(3.6, 0.9 + 0.13 * len(results[key])) for key, _ in drawn] or [3.6]
    figure = new_figure(7.0, 0.6 + sum(heights))
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (key, function) in zip(grid, drawn, strict=False):
        function(axes, results[key])
    return figure


def _draw_tax(axes: Axes, tax: Mapping[str, Mapping[str, float]]) -> None:
    """Draw a bar per method, in groups by model."""
    methods = _methods_of(tax)
    width = 0.8 / len(methods)
    for index, method in enumerate(methods):
        positions = [position + (index + 0.5) * width - 0.4 for position in range(len(tax))]
        heights = [by_method.get(method, 0.0) for by_method in tax.values()]
        axes.bar(positions, heights, 0.9 * width, color=color_of(index), label=method)
    axes.axhline(1.0, color=RED, linestyle="--", linewidth=1)
    axes.set_xticks(range(len(tax)), list(tax))
    axes.set(title="Rounds beside a plain PyTorch loop", ylabel="Images/s, ratio")
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.1), fontsize=9)


def _draw_methods(axes: Axes, cost: Mapping[str, float]) -> None:
    names = sorted(cost, key=lambda name: cost[name])
    axes.barh(range(len(names)), [cost[name] for name in names], color=BLUE)
    axes.axvline(1.0, color=RED, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(title="Seconds per round over FedAvg's", xlabel="Ratio")


def _draw_messages(axes: Axes, messages: Mapping[str, Mapping[str, float]]) -> None:
    sizes = [float(size) for size in messages]
    for key, color, label in (("seconds", BLUE, "fedapp"), ("stock_seconds", RED, "stock Flower")):
        axes.plot(sizes, [row[key] for row in messages.values()], "o-", color=color, label=label)
    axes.set(title="Rounds without training", xlabel="Model, MB", ylabel="Seconds per round")
    axes.legend()


def _draw_scale(axes: Axes, points: Sequence[Mapping[str, Any]]) -> None:
    labels = [f"{p['cohort']} of {p['clients']:,}, {p['workers']} w." for p in points]
    bars = axes.barh(range(len(points)), [p["seconds"] for p in points], color=BLUE)
    axes.bar_label(bars, fmt="{:.2g}", padding=3, fontsize=9)
    axes.set_yticks(range(len(points)), labels, fontsize=9)
    axes.margins(x=0.1)
    axes.set(title="Rounds of many small clients", xlabel="Seconds per round")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)
