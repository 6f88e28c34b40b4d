"""The traffic of runs: bytes per round and client, and accuracy over megabytes.

The traffic of clients counts only their arrays, as if each client had its own node, so that methods
are comparable for any number of clients per node. The module also reports the training messages in
both directions, as Flower counts them, and those of evaluations on the clients' test splits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fedapp.results.outcome import best_round
from fedapp.results.plots.rendering import line_style, new_figure, plain_log_ticks, styled
from fedapp.results.run_directory import RunDirectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def traffic_row(run: RunDirectory) -> dict[str, Any]:
    """Return one run's traffic: means per round and per client in kB (1000 bytes), sums in MB.

    A round's line without traffic raises KeyError or TypeError.
    """
    rows = run.rounds()
    count = max(len(rows), 1)
    updates = max(sum(row["clients"] for row in rows), 1)
    sampled = max(sum(row.get("asked", row["clients"]) for row in rows), 1)
    measured = next((r["accuracy"] for r in reversed(rows) if r["accuracy"] is not None), None)
    messages = sum(row["bytes_up"] + row["bytes_down"] for row in rows)
    evaluated = sum(row.get("eval_bytes_up", 0) + row.get("eval_bytes_down", 0) for row in rows)
    return {
        "run": run.name,
        "method": run.config()["method"],
        "rounds": len(rows),
        "up_kb_per_round": sum(row["bytes_up"] for row in rows) / count / 1e3,
        "down_kb_per_round": sum(row["bytes_down"] for row in rows) / count / 1e3,
        "client_up_kb": sum(row["client_bytes_up"] for row in rows) / updates / 1e3,
        "client_down_kb": sum(map(_down, rows)) / sampled / 1e3,
        "clients_mb": sum(map(both_ways, rows)) / 1e6,
        "messages_mb": messages / 1e6,
        "eval_mb": evaluated / 1e6,
        "accuracy_best": best_round(rows).get("accuracy"),
        "accuracy_final": run.summary().get("accuracy_final", measured),
    }


def round_rows(run: RunDirectory) -> list[dict[str, Any]]:
    """Return the bytes of every round, and the cumulative training traffic of clients in MB."""
    rows = run.rounds()
    sums = accumulate(map(both_ways, rows))
    return [
        {
            "round": row["round"],
            "bytes_up": row["bytes_up"],
            "bytes_down": row["bytes_down"],
            "client_bytes_up": row["client_bytes_up"],
            "client_bytes_down": _down(row),
            "eval_bytes_up": row.get("eval_bytes_up", 0),
            "eval_bytes_down": row.get("eval_bytes_down", 0),
            "clients_mb": total / 1e6,
            "accuracy": row["accuracy"],
        }
        for row, total in zip(rows, sums, strict=True)
    ]


@styled
def accuracy_against_traffic(runs: Sequence[RunDirectory]) -> Figure:
    """Draw accuracy over the megabytes sent so far, one curve per run, with a logarithmic axis."""
    figure = new_figure(6.0, 4.6 + 0.12 * len(runs))
    axes = figure.subplots()
    for index, run in enumerate(runs):
        rows = [row for row in round_rows(run) if row["accuracy"] is not None]
        color, dash = line_style(index)
        sent, reached = [row["clients_mb"] for row in rows], [100 * row["accuracy"] for row in rows]
        axes.plot(sent, reached, dash, color=color, label=run.name)
    axes.set(xscale="log", xlabel="MB sent by and to clients in training", ylabel="Accuracy (%)")
    plain_log_ticks(axes.xaxis)
    axes.set_title("Test accuracy against traffic")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _down(row: Mapping[str, Any]) -> int:
    """Return the bytes sent to a round's clients; older runs recorded only those of messages."""
    return int(row.get("client_bytes_down", row["bytes_down"]))


def both_ways(row: Mapping[str, Any]) -> int:
    """Return the bytes that the clients of a round sent and received in training."""
    return int(row["client_bytes_up"]) + _down(row)
