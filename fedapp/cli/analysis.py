"""The commands that measure finished runs: their models, their clients, their traffic.

`analyse` and `personalise` train local models again in this process, without Flower, so they need
the clients' data and no federation. Imports that take seconds are inside the commands, so that
`--help` is quick.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.cli.options import AsJson, show, write_png
from fedapp.config.overrides import read_overrides
from fedapp.results.formatting import clients_headline, percent

Plot = Annotated[Path | None, typer.Option(help="Write accuracy against MB as a PNG here.")]
WithRounds = Annotated[bool, typer.Option("--json", help="Print JSON, with every round.")]


def measures(as_json: AsJson = False) -> None:
    """List the measures of models, for `fedapp analyse` and the key `analyses`.

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
        str, typer.Option("--measures", "-m", help="Words of `fedapp measures`.")
    ] = "local-accuracy alignment drift four-factors norms weight-alignment divergence",
    rounds: Annotated[
        list[int] | None, typer.Option("--round", help="Which round; may be repeated.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all-rounds", help="Every round of which the models were kept.")
    ] = False,
    clients: Annotated[int, typer.Option(help="Most clients to train again; 0: all.")] = 10,
    data_dir: Annotated[str, typer.Option(help="Where the data is, if not as in the run.")] = "",
    device: Annotated[str, typer.Option(help="Device, if not as in the run.")] = "",
    plots: Annotated[
        Path | None, typer.Option(help="Folder for plots of all runs together.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure rounds of finished runs, and plot runs over each other.

    Each run keeps analysis.json, analysis.csv and analysis/MEASURE.png; its report shows them.

    Example: fedapp analyse runs/a runs/b -m "alignment norms" --plots figures
    """
    from fedapp.analysis.saved_runs import Places
    from fedapp.analysis.session import Wanted, analyse_runs
    from fedapp.results.plots.measure_plots import drawn, write_figures

    wanted = Wanted(words, tuple(rounds or ()), every, clients, Places(data_dir, device))
    found = analyse_runs(runs, wanted, lambda text: print(text, file=sys.stderr))
    if plots is not None:
        for path in write_figures(drawn(list(found.items())), plots):
            print(f"wrote {path.absolute()}", file=sys.stderr)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _show_figures(found)


def _show_figures(found: dict[str, list[dict[str, Any]]]) -> None:
    """Print the headline figures of each run's last measured round, a column per run."""
    from fedapp.results.measures_file import figures

    last = {label: figures(entries[-1]) for label, entries in found.items() if entries}
    names = dict.fromkeys(name for values in last.values() for name in values)
    rows = [
        {"figure": name, **{label: values.get(name) for label, values in last.items()}}
        for name in names
    ]
    show("Measures: means over clients, and of the global model", rows, False)


def personalise(
    run: Annotated[Path, typer.Argument(help="A run directory with model.safetensors.")],
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="finetune-* keys; the rest is as in the run."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="New folder for each client's model, as safetensors.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a run's model on every client and test it there; writes RUN/personal.json.

    Example: fedapp personalise runs/NAME -c "finetune-epochs=5 finetune-lr=0.001" --export models
    """
    from fedapp.analysis.personalise import personalise as fine_tune
    from fedapp.core.files import json_text

    found = fine_tune(run, read_overrides(config or []), export)
    if as_json:
        print(json_text(found, 2), end="")
        return
    settings = {key: str(value) for key, value in found.items() if key.startswith("finetune-")}
    lines: list[tuple[str, Any]] = [*settings.items(), *clients_headline(found)]
    show(f"Personal models of {run.name}", [{"": k, "value": v} for k, v in lines], False)


def traffic(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Plot = None,
    as_json: WithRounds = False,
) -> None:
    """Say how many bytes clients sent and were sent, and draw accuracy against them.

    Example: fedapp traffic runs/feddor runs/fedproto --plot traffic.png
    """
    from fedapp.results.run_directory import RunDirectory
    from fedapp.results.traffic import accuracy_against_traffic, round_rows, traffic_row

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
    from fedapp.analysis.feature_map import draw, features_of
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


COMMANDS = (measures, analyse, personalise, traffic, features)
