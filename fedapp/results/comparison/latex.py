"""The groups of a comparison as a LaTeX table, for a paper.

The best mean of each column is bold. Mean and deviation over seeds are in percent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedapp.results.comparison.spread import ACCURACIES

_SPECIAL = str.maketrans(
    {each: f"\\{each}" for each in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)


def latex_table(groups: Sequence[Mapping[str, Any]], comparable: bool = True) -> str:
    """Return a tabular of the "groups" of `comparison.compare`; it needs the package booktabs.

    A column in which no group has a number is left out. Nothing is bold without `comparable`: the
    accuracies are not of the same images or kind of model.
    """
    keys = [key for key in ACCURACIES if any(row[key] is not None for row in groups)]
    best = {key: max(_shown(row[key]) for row in groups) for key in keys if comparable}
    models = ["accuracy_of"] if len({row["accuracy_of"] for row in groups}) > 1 else []
    heads = ["group", *(name.replace("_", " ") for name in models), "seeds"]
    heads += [ACCURACIES[key] for key in keys]
    lines = [
        [_text(row[name]) for name in ("group", *models)]
        + [str(len(row["seeds"])), *(_cell(row, key, best.get(key)) for key in keys)]
        for row in groups
    ]
    body = [" & ".join(cells) + r" \\" for cells in (heads, *lines)]
    return "\n".join([
        r"% accuracy (%), mean and standard deviation over seeds; needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule",
        r"\end{tabular}",
        "",
    ])  # fmt: skip


def _shown(fraction: float | None) -> float:
    """Return the percentage that the table shows for a fraction; -1 for None."""
    return -1.0 if fraction is None else float(f"{100 * fraction:.2f}")


def _cell(row: Mapping[str, Any], key: str, best: float | None) -> str:
    """Return "81.23 $\\pm$ 0.45", the mean in bold if no other group's is larger; "--" if none."""
    if row[key] is None:
        return "--"
    mean, std = f"{100 * row[key]:.2f}", row[f"{key}_std"]
    shown = rf"\textbf{{{mean}}}" if _shown(row[key]) == best else mean
    return shown if std is None else rf"{shown} $\pm$ {100 * std:.2f}"


def _text(name: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return name.translate(_SPECIAL)
