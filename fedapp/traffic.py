"""What methods send, measured: bytes per round and client, and accuracy against megabytes.

Bytes are those of the training messages as Flower counts them, both ways; those of evaluations on
the clients' own test splits are counted apart. What one client sends is counted in its arrays
alone, so that it does not depend on how many clients share a node (specification of the
heterogeneous methods, section 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fedapp.results.rendering import line_style, new_figure, plain_log_ticks, styled
from fedapp.results.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def traffic_row(run: RunDirectory) -> dict[str, Any]:
    """Return what one run sent: means per round in kB (1000 bytes), and sums in MB."""
    rows = run.rounds()
    count = max(len(rows), 1)
    updates = max(sum(row["clients"] for row in rows), 1)
    accuracies = [row["accuracy"] for row in rows if row["accuracy"] is not None]
    sent = sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    evaluated = sum(row.get("eval_bytes_up", 0) + row.get("eval_bytes_down", 0) for row in rows)
    return {
        "run": run.name,
        "method": run.config()["method"],
        "rounds": len(rows),
        "up_kb_per_round": sum(row["bytes_up"] for row in rows) / count / 1e3,
        "down_kb_per_round": sum(row["bytes_down"] for row in rows) / count / 1e3,
        "arrays_kb_per_client": sum(row["client_bytes_up"] for row in rows) / updates / 1e3,
        "total_mb": sent / 1e6,
        "eval_mb": evaluated / 1e6,
        "accuracy_best": max(accuracies, default=None),
        "accuracy_final": accuracies[-1] if accuracies else None,
    }


def round_rows(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the bytes of every round of a run, and the running sum in MB, of training only."""
    rows = run.rounds()
    sums = accumulate(row["bytes_up"] + row["bytes_down"] for row in rows)
    return [
        {
            "round": row["round"],
            "bytes_up": row["bytes_up"],
            "bytes_down": row["bytes_down"],
            "eval_bytes_up": row.get("eval_bytes_up", 0),
            "eval_bytes_down": row.get("eval_bytes_down", 0),
            "total_mb": total / 1e6,
            "accuracy": row["accuracy"],
        }
        for row, total in zip(rows, sums, strict=True)
    ]


@styled
def accuracy_against_traffic(runs: Sequence[RunDirectory]) -> Figure:
    """Draw accuracy over the megabytes sent so far, one curve per run, on a logarithmic axis."""
    figure = new_figure(6.0, 4.6 + 0.12 * len(runs))
    axes = figure.subplots()
    for index, run in enumerate(runs):
        rows = [row for row in round_rows(run) if row["accuracy"] is not None]
        color, dash = line_style(index)
        sent, reached = [row["total_mb"] for row in rows], [100 * row["accuracy"] for row in rows]
        axes.plot(sent, reached, dash, color=color, label=run.name)
    axes.set(xscale="log", xlabel="MB sent in training messages, both ways", ylabel="Accuracy (%)")
    plain_log_ticks(axes.xaxis)
    axes.set_title("Test accuracy against traffic")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
