"""The commands about clients with models of their own: what they send, where features lie."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.cli_options import show, write_png

Plot = Annotated[Path | None, typer.Option(help="Write accuracy against MB as a PNG here.")]
WithRounds = Annotated[bool, typer.Option("--json", help="Print JSON, with every round.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command()(traffic)
    app.command()(features)


def traffic(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Plot = None,
    as_json: WithRounds = False,
) -> None:
    """Say how many bytes clients sent and were sent, and draw accuracy against them.

    Example: fedapp traffic runs/feddor runs/fedproto --plot traffic.png
    """
    from fedapp.results.run_directory import RunDirectory
    from fedapp.traffic import accuracy_against_traffic, round_rows, traffic_row

    opened = [RunDirectory.load(run) for run in runs]
    rows = [traffic_row(run) for run in opened]
    if as_json:
        detailed = [
            {**row, "by_round": round_rows(run)} for row, run in zip(rows, opened, strict=True)
        ]
        print(json.dumps(detailed, indent=2))
    else:
        show(
            "Traffic: kB per client and round, MB of clients, of training messages and of tests",
            [_readable(row) for row in rows],
            False,
        )
    if plot is not None:
        write_png(accuracy_against_traffic(opened), plot)


def features(
    run: Annotated[Path, typer.Argument(help="A run directory, of a run with keep-state=true.")],
    target: Annotated[
        Path | None, typer.Option("--plot", help="The PNG; default: features.png in the run.")
    ] = None,
) -> None:
    """Map the features of the clients' own test images by t-SNE, coloured by class.

    A client that was never drawn has no model to map with and is left out.

    Example: fedapp features runs/feddor
    """
    from fedapp.feature_map import draw, features_of
    from fedapp.results.run_directory import RunDirectory

    opened = RunDirectory.load(run)
    config = opened.config()
    title = f"{config['method']} on {config['dataset']}"
    found = features_of(opened)
    figure = draw(found, title, int(config["seed"]))
    write_png(figure, target or opened.path / "features.png")
    print(f"models of {len(found.clients)} of {config['num-clients']} clients", file=sys.stderr)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Write one run's figures for people, in kB of 1000 bytes."""
    from fedapp.results.formatting import percent

    return {
        "run": row["run"],
        "up kB": f"{row['client_up_kb']:,.2f}",
        "down kB": f"{row['client_down_kb']:,.2f}",
        "MB": f"{row['clients_mb']:,.2f}",
        "messages MB": f"{row['messages_mb']:,.2f}",
        "eval MB": f"{row['eval_mb']:,.2f}",
        "best": percent(row["accuracy_best"]),
        "final": percent(row["accuracy_final"]),
    }
