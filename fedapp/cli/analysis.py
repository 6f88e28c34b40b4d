"""The commands that analyse finished runs: their models, their clients, their traffic.

`analyse` works in this process, without Flower, so it needs no federation, but the clients' data.
Slow imports are inside the commands, so that `--help` is fast.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.cli.options import AsJson, check_run_directories, show, write_png
from fedapp.results.formatting import percent

Plot = Annotated[Path | None, typer.Option(help="PNG file for a plot of accuracy against MB.")]
WithRounds = Annotated[bool, typer.Option("--json", help="Print JSON, including every round.")]


def measures(as_json: AsJson = False) -> None:
    """List the measures that `fedapp analyse` and the run-config key `analyses` accept.

    Example: fedapp measures
    """
    from fedapp.analysis.measures.table import MEASURES

    rows = [
        {"measure": "forgetting", "title": "Forgetting of classes", "local models": "no",
         "source": "FedNTD (Lee et al. 2022), section 2"},
        {"measure": "consistency", "title": "Consistency of class accuracies", "local models": "no",
         "source": "FedNTD (Lee et al. 2022), figure 2"},
    ]  # fmt: skip
    rows += [
        {
            "measure": word,
            "title": measure.title,
            "local models": "yes" if measure.local else "no",
            "source": measure.source,
        }
        for word, measure in MEASURES.items()
    ]
    show("Measures", rows, as_json)


def analyse(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    words: Annotated[
        str,
        typer.Option("--measures", "-m", help="Names from `fedapp measures`, separated by spaces."),
    ] = "local-accuracy alignment drift four-factors norms weight-alignment divergence",
    rounds: Annotated[
        list[int] | None,
        typer.Option("--round", min=1, help="A round to measure; may be repeated."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all-rounds", help="Measure every round whose models are available.")
    ] = False,
    clients: Annotated[int, typer.Option(min=0, help="Clients to retrain at most; 0: all.")] = 10,
    data_dir: Annotated[str, typer.Option(help="Data folder, if it differs from the run's.")] = "",
    device: Annotated[str, typer.Option(help="Device, if it differs from the run's.")] = "",
    plots: Annotated[Path | None, typer.Option(help="Folder for plots of all runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure rounds of finished runs, and compare runs in plots.

    Writes analysis.json, analysis.csv and analysis/MEASURE.png to each run directory and adds the
    results to its report.

    Example: fedapp analyse runs/a runs/b -m "alignment norms" --plots figures
    """
    check_run_directories(*runs)
    from fedapp.analysis.session import AnalysisRequest, analyse_runs
    from fedapp.results.folders import check_writable
    from fedapp.results.plots.measure_plots import drawn, write_figures

    if plots is not None:
        check_writable(plots, "--plots")
    overrides = {k: v for k, v in {"data-dir": data_dir, "device": device}.items() if v}
    request = AnalysisRequest(words, rounds or (), every, clients, overrides)
    found = analyse_runs(runs, request, lambda text: print(text, file=sys.stderr))
    if plots is not None:
        for path in write_figures(drawn(list(found.items())), plots):
            print(f"wrote {path.absolute()}", file=sys.stderr)
    _show_figures(found, words.split(), rounds or [], as_json)


def _show_figures(
    found: dict[str, list[dict[str, Any]]], words: list[str], rounds: list[int], as_json: bool
) -> None:
    """Print each run's newest main figures of these measures, or everything as JSON."""
    from fedapp.results.measures_file import newest

    if as_json:
        print(json.dumps(found, indent=2))
        return
    shown = {label: newest(entries, words, rounds) for label, entries in found.items()}
    names = dict.fromkeys(name for values in shown.values() for name in values)
    rows = [
        {"figure": name, **{label: values.get(name) for label, values in shown.items()}}
        for name in names
    ]
    show("Measures: means over clients, and of the global model", rows, False)


def traffic(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Plot = None,
    as_json: WithRounds = False,
) -> None:
    """Print how many bytes clients sent and received; plot accuracy against traffic.

    Example: fedapp traffic runs/feddor runs/fedproto --plot traffic.png
    """
    from fedapp.results.folders import readable
    from fedapp.results.run_directory import RunDirectory
    from fedapp.results.traffic import accuracy_against_traffic, round_rows, traffic_row

    opened = [RunDirectory.load(run) for run in runs]
    with readable(*runs):
        rows = [traffic_row(run) for run in opened]
        by_round = [round_rows(run) for run in opened] if as_json else []
        figure = None if plot is None else accuracy_against_traffic(opened)
    if as_json:
        detailed = [{**row, "by_round": found} for row, found in zip(rows, by_round, strict=True)]
        print(json.dumps(detailed, indent=2))
    else:
        show(
            "Traffic: kB per client and round, MB of clients, of training messages and of tests",
            [_readable(row) for row in rows],
            False,
        )
    if figure is not None and plot is not None:
        write_png(figure, plot)


def features(
    run: Annotated[Path, typer.Argument(help="The directory of a run with keep-state=true.")],
    target: Annotated[
        Path | None,
        typer.Option("--plot", help="PNG file; default: features.png in the run directory."),
    ] = None,
) -> None:
    """Map the features of each client's test images by t-SNE, coloured by class.

    Clients that never trained have no stored model and are left out.

    Example: fedapp features runs/feddor
    """
    check_run_directories(run)
    from fedapp.results.run_directory import RunDirectory
    from fedapp.trained_models.feature_map import draw, features_of

    opened = RunDirectory.load(run)
    config = opened.config()
    title = f"{config['method']} on {config['dataset']}"
    found = features_of(opened)
    figure = draw(found, title, int(config["seed"]))
    write_png(figure, target or opened.path / "features.png")
    print(f"models of {len(found.clients)} of {config['num-clients']} clients", file=sys.stderr)


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Format one run's figures as text, in kB of 1000 bytes."""
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
