"""The commands that measure trained models: `fedapp measures` and `fedapp analyse`.

They train local models again in this process, without Flower, so they need the clients' data and no
federation.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.cli_options import AsJson, show


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the command line."""
    app.command()(measures)
    app.command()(analyse)


def measures(as_json: AsJson = False) -> None:
    """List the measures of models, for `fedapp analyse` and the key `analyses`.

    Example: fedapp measures
    """
    from fedapp.analysis.table import MEASURES

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
    from fedapp.results.measure_plots import drawn, write_figures

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
    from fedapp.analysis.store import figures

    last = {label: figures(entries[-1]) for label, entries in found.items() if entries}
    names = dict.fromkeys(name for values in last.values() for name in values)
    rows = [
        {"figure": name, **{label: values.get(name) for label, values in last.items()}}
        for name in names
    ]
    show("Measures: means over clients, and of the global model", rows, False)
