"""The HTML page of a reproduced table: published and own results, as a table and as a plot.

Differences from the published setting (fewer rounds, another copy of the data) are at the top and
beside every result, because readers of the page may not know the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapp.core.files import write_atomically
from fedapp.results.formatting import duration
from fedapp.results.plots.rendering import BLUE, RED, new_figure, styled, svg
from fedapp.results.report import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_MOST_IN_PLOT = 40


def write_results_page(rows: Sequence[Row], source: str, path: Path) -> Path:
    """Write the page of some cells' results, create its folder, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, results_html(rows, source).encode())
    return path


def results_html(rows: Sequence[Row], source: str) -> str:
    """Return the page; `rows` are those of `reproduce.result`, `source` describes the table."""
    changes = dict.fromkeys(str(row["changes"]) for row in rows if row["changes"])
    warning = [page.paragraph(f"Not the published setting: {words}", "reason") for words in changes]
    lead = page.paragraph(source, "faint") + "".join(warning)
    first = rows[0]
    return page.page(
        f"{first['paper']}, {first['table']}: published and reproduced",
        lead,
        [
            page.section("Results", page.table("Results", [_row(row) for row in rows])),
            page.section("In one plot", _plot(rows)),
            page.section("How each figure was made", *map(_details, rows)),
        ],
    )


def compared(row: Row) -> dict[str, Any]:
    """Return a cell's published and own figure with their difference, as texts; None: unknown."""
    published = plus_minus(row["published mean"], row["published std"])
    difference = row["difference"]
    return {
        "cell": row["cell"],
        "published": "failed" if row["published failed"] else published,
        "ours": plus_minus(row["mean"], row["std"]),
        "difference": None if difference is None else f"{difference:+.2f}",
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **compared(row),
        "seeds": row["seeds"] or None,
        "at chance": row["at-chance seeds"] or None,
        "diverged": row["diverged seeds"] or None,
        "unfinished": row["unfinished seeds"] or None,
        "unmeasured": row["unmeasured seeds"] or None,
        "final %": _number(row["final accuracy %"]),
        "best % (round)": _best(row),
        "rounds": f"{row['rounds']} ({row['changes']})" if row["changes"] else row["rounds"],
        "time": duration(row["seconds"]),
        "hardware": row["device"] or None,
    }


def _best(row: Row) -> str | None:
    best = _number(row["best accuracy %"])
    return None if best is None else f"{best} ({row['best round']})"


def _details(row: Row) -> str:
    note = page.paragraph(row["note"]) if row["note"] else ""
    return page.details(row["cell"], note + page.code(row["command"]))


def _plot(rows: Sequence[Row]) -> str:
    """Draw published and own means with their deviations, up to a legible number of cells."""
    done = [row for row in rows if row["mean"] is not None]
    known = done[:_MOST_IN_PLOT]
    if not known:
        return ""
    cut = f"The first {len(known)} of {len(done)} figures." if len(known) < len(done) else ""
    words = "; ".join(
        f"{row['cell']}: published {plus_minus(row['published mean'], row['published std'])}, "
        f"ours {plus_minus(row['mean'], row['std'])}"
        for row in known
    )
    plot = page.plot(svg(_draw(known), f"Published and own figures. {words}"))
    return plot + (page.paragraph(cut, "faint") if cut else "")


@styled
def _draw(rows: Sequence[Row]) -> Figure:
    figure = new_figure(4.8, 1.4 + 0.55 * len(rows))
    axes = figure.subplots()
    sides = (("published", "published mean", "published std", BLUE, "s", -0.13),
             ("ours", "mean", "std", RED, "o", 0.13))  # fmt: skip
    for label, mean, std, color, marker, shift in sides:
        points = [(index + shift, row) for index, row in enumerate(rows) if row[mean] is not None]
        axes.errorbar(
            [row[mean] for _, row in points], [position for position, _ in points],
            xerr=[row[std] or 0 for _, row in points], fmt=marker, color=color, capsize=3,
            label=label,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [_wrapped(row["cell"]) for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.margins(x=0.08)
    axes.set(xlabel=str(rows[0]["metric"]).replace("_percent", " (%)").replace("_", " "))
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _wrapped(text: str) -> str:
    method, _, rest = text.partition(" ")
    return f"{method}\n{rest}"


def plus_minus(mean: float | None, std: float | None) -> str | None:
    """Return a mean and, if there is one, its deviation."""
    if mean is None:
        return None
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
