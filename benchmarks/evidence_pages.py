"""The tables and curves of the pages, made from docs/evidence/runs.csv and rounds.csv."""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from evidence_data import Record, read
from evidence_plots import published_beside_curves

from fedapp.core.files import write_atomically
from fedapp.experiments.papers.cells import cell_names, cells_of
from fedapp.experiments.papers.metrics import OWN_IMAGES, reports_best_round
from fedapp.experiments.papers.tables import find_paper
from fedapp.results.formatting import markdown_table
from fedapp.results.plots.rendering import png

DOCS = Path(__file__).parents[1] / "docs"
IMAGES = DOCS / "images"
PAGES = (DOCS / "evidence.md", DOCS.parent / "README.md")
FINAL, BEST, OWN = "final %", "best %", "own images %"  # columns of runs.csv
_LATE = 10  # rounds at the end of a run


def write() -> None:
    """Draw the curves of every table, and fill the marked tables of the pages."""
    runs = [line for line in read("runs.csv") if line["paper"]]
    curves = _curves()
    for title, lines in _grouped(runs, panel).items():
        named = _grouped(lines, _legend)
        figure = published_beside_curves(
            {name: [curves[line["run"]] for line in group] for name, group in named.items()},
            {
                name: float(group[0]["published"])
                for name, group in named.items()
                if group[0]["published"]
            },
            title,
        )
        write_atomically(IMAGES / picture_name(title), png(figure))
    for page in PAGES:
        page.write_text(filled(page.read_text("utf-8"), runs), "utf-8")


def _grouped(lines: Sequence[Record], key: Callable[[Record], str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for line in lines:
        groups[key(line)].append(line)
    return dict(groups)


def panel(line: Record) -> str:
    """Return the title of a run's figure: paper, table, cell without its method, and rounds."""
    cell = ", ".join(filter(None, [line["cell"].partition(" ")[2], _scale(line)]))
    return f"{line['paper']} {line['table']} {cell}"


def _legend(line: Record) -> str:
    """Return what the run's figure calls it: the method and its changed keys."""
    return ", ".join([line["cell"].partition(" ")[0], *_changed(line)])


def _cell(line: Record) -> str:
    """Return a run's cell; fewer rounds or another precision make cells of their own."""
    return ", ".join([line["cell"], *filter(None, [_scale(line)]), *_changed(line)])


def _changed(line: Record) -> list[str]:
    """Return "key=value" of the changed keys that have an effect on the result."""
    parts = [part for part in line["changes"].split(", ") if "=" in part]
    return [part for part in parts if not part.startswith("eval-every=")]


def _scale(line: Record) -> str:
    """Return "rounds x 0.2" for a run with that share of the published rounds, otherwise ""."""
    first = line["changes"].partition(",")[0]
    return first if first.startswith("rounds x") else ""


def picture_name(title: str) -> str:
    """Return the file name of the figure with this title."""
    return f"evidence-{re.sub('[=,]', '', title).replace(' ', '-')}.png"


def _curves() -> dict[str, list[tuple[int, float]]]:
    curves = defaultdict(list)
    for line in read("rounds.csv"):
        curves[line["run"]].append((int(line["round"]), float(line["accuracy %"])))
    return curves


def filled(text: str, runs: Sequence[Record]) -> str:
    """Return a page with new tables between the marks `<!-- evidence: ... -->`.

    A mark names a paper and a table.
    """

    def filled_in(mark: re.Match[str]) -> str:
        paper, table = mark[2].split()
        lines = [line for line in runs if (line["paper"], line["table"]) == (paper, table)]
        return f"{mark[1]}\n{published_beside_ours(paper, table, lines)}\n{mark[3]}"

    return re.sub(r"(<!-- evidence: ([^>]+?) -->)\n.*?(<!-- end -->)", filled_in, text, flags=re.S)


def published_beside_ours(paper: str, table: str, lines: Sequence[Record]) -> str:
    """Return a Markdown table with a row per cell, over all its seeds.

    Cells with fewer rounds than published come last, without a difference from the published ones.
    """
    curves = _curves()
    late = {line["run"]: text for line in lines if (text := _last_ten(line, curves))}
    order = cell_names(find_paper(paper).table(table))
    in_order = sorted(lines, key=lambda line: (_scale(line), order.index(line["cell"])))
    forgotten = _published_forgetting(paper, table)
    compared = _compared(paper, table)
    results = _results(set(compared.values()))
    first, second = results
    ours = [first, "difference", second, *(["last ten rounds"] if late else [])]
    columns = ["cell", "published", *ours, "seeds", "rounds", "hours"]
    columns += ["published forgetting", "forgetting"] if forgotten else []
    rows = []
    for name, of_cell in _grouped(in_order, _cell).items():
        row = _row(name, of_cell, results.values(), compared[of_cell[0]["cell"]])
        if late:
            row.insert(5, "; ".join(late.get(line["run"], "-") for line in of_cell))
        if forgotten:
            known = [float(line["forgetting"]) for line in of_cell if line["forgetting"]]
            mean = f"{statistics.mean(known):.2f}" if known else "-"
            row += [str(forgotten.get(of_cell[0]["cell"], "-")), mean]
        rows.append(row)
    return "\n".join(markdown_table(columns, rows))


def _last_ten(line: Record, curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Return mean ± standard deviation of a run's last ten rounds; "" unless all were tested."""
    done = int(line["done"])
    late = [accuracy for number, accuracy in curves[line["run"]] if number > done - _LATE]
    if line["status"] != "completed" or _scale(line) or len(late) < _LATE:
        return ""
    return f"{statistics.mean(late):.1f} ± {statistics.stdev(late):.1f}"


def _compared(paper: str, table: str) -> dict[str, str]:
    """Return the column of runs.csv that is compared with the published number of each cell."""
    of_table = find_paper(paper).table(table)
    usual = BEST if reports_best_round(of_table.setting) else FINAL
    cells = cells_of(find_paper(paper), of_table)
    return {cell.name: OWN if cell.measure.endswith(OWN_IMAGES) else usual for cell in cells}


def _results(compared: set[str]) -> dict[str, str]:
    """Return two results of a table, given its compared columns, with their columns in runs.csv."""
    if OWN in compared:
        return {"own images": OWN, "mixed batches": FINAL}
    if BEST in compared:
        return {"ours, best round": BEST, "final": FINAL}
    return {"ours": FINAL, "best": BEST}


def _published_forgetting(paper: str, table: str) -> dict[str, float | None]:
    tables = {found.id: found for found in find_paper(paper).tables}
    other = tables.get(f"{table}-forgetting")
    if other is None:
        return {}
    return {name: row.mean for name, row in zip(cell_names(other), other.rows, strict=True)}


def _plain(number: str) -> str:
    return f"{float(number):g}" if number else ""


def _mean(lines: Sequence[Record], column: str, whole: bool) -> str:
    """Return mean ± standard deviation of some runs; "-" if none has the value."""
    values = [float(line[column]) for line in lines if line[column]]
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    some = f" ({len(values)} of {len(lines)} runs)" if len(values) < len(lines) else ""
    return f"{statistics.mean(values):.2f}{spread}{some}" + ("" if whole else " so far")


def _row(name: str, lines: Sequence[Record], columns: Iterable[str], compared: str) -> list[str]:
    """Return the fields of a cell, with two results of its runs; one column is compared."""
    ours = [float(line[compared]) for line in lines if line[compared]]
    whole = all(line["status"] == "completed" for line in lines)
    published = lines[0]["published"]
    comparable = published and ours and whole and not _scale(lines[0])
    first, second = (_mean(lines, column, whole) for column in columns)
    done = ", ".join(line["done"] for line in lines)
    return [
        name,
        " ± ".join(filter(None, [_plain(published), lines[0]["published std"]])) or "-",
        first,
        f"{statistics.mean(ours) - float(published):+.2f}" if comparable else "-",
        second,
        " ".join(line["seed"] for line in lines),
        lines[0]["rounds"] if whole else f"{done} of {lines[0]['rounds']}",
        f"{sum(float(line['hours']) for line in lines):.1f}",
    ]
