"""The `fedapp` command: run, and look at, federated trainings.

Each command reads its arguments, calls one function of the package and prints a table or, with
`--json`, the same as JSON. Heavy imports happen inside the commands, so that `--help` is quick.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fedapp import cli_analysis, cli_deployment, cli_experiments, cli_personal, cli_traffic
from fedapp.cli_options import AsJson, Overrides, Project, show, write_png
from fedapp.errors import UserError
from fedapp.launch import Engine, Resources, default_config
from fedapp.launch import run as simulate
from fedapp.overrides import read_overrides
from fedapp.papers import commands as papers_commands
from fedapp.state_command import app as state_app
from fedapp.subprocesses import heed_signals

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Federated learning on heterogeneous data with Flower.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(state_app, name="state")


def main() -> None:
    """Run the command line; a user's mistake becomes one sentence and exit code 2.

    What Ctrl-C ends, SIGTERM ends in the same way.
    """
    heed_signals()
    try:
        app()
    except UserError as mistake:
        print(f"fedapp: {mistake}", file=sys.stderr)
        sys.exit(2)


@app.command()
def run(
    config: Overrides = None,
    project: Project = Path("."),
    nodes: Annotated[int, typer.Option(min=0, help="Virtual SuperNodes; 0: one per worker.")] = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes; 0: one per core, or four per GPU.")
    ] = 0,
    gpus: Annotated[
        float, typer.Option(min=-1.0, help="GPU share of a worker; -1: all GPUs, shared.")
    ] = -1.0,
    engine: Annotated[
        Engine | None,
        typer.Option(help="What trains, with the same result; ray where RAY_ADDRESS is set."),
    ] = None,
) -> None:
    """Simulate a run: virtual SuperNodes on worker processes of this machine, or on Ray.

    Example: fedapp run -c "method='fedntd' num-rounds=50" -c presets/mine.toml
    """
    task = project, read_overrides(config or []), Resources(nodes, workers, gpus)
    if engine == Engine.IN_PROCESS:
        from fedapp.in_process import run_in_process

        raise SystemExit(run_in_process(*task))
    if engine == Engine.SUPERLINK:
        from fedapp.local_superlink import run_with_superlink

        raise SystemExit(run_with_superlink(*task))
    raise SystemExit(simulate(*task, engine))


@app.command()
def methods(
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the table of docs/methods.md.")
    ] = False,
) -> None:
    """List the method table: head, loss, regulariser, strategy, what is sent, defaults, source.

    Example: fedapp methods --json
    """
    from fedapp.method_pages import markdown_table, table

    if as_markdown:
        print(markdown_table())
    else:
        show("Methods", table(), as_json)


@app.command()
def config(config: Overrides = None, project: Project = Path("."), as_json: AsJson = False) -> None:
    """Explain every configuration key, with the value that it resolves to.

    Example: fedapp config -c "dataset='cifar10' method='fedntd'"
    """
    from fedapp.config import RunConfig

    resolved = RunConfig.parse({**default_config(project), **read_overrides(config or [])})
    fields = {name.replace("_", "-"): field for name, field in RunConfig.model_fields.items()}
    rows = [
        {"key": key, "value": value, "meaning": fields[key].description}
        for key, value in resolved.flat().items()
    ]
    show("Configuration", rows, as_json)


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the protocols of the papers that come as presets, to be given to -c by name.

    Example: fedapp run -c fedntd-cifar10-lda -c "method='fedavg' data-dir='data'"
    """
    from fedapp.preset_files import preset_rows

    show("Presets", list(preset_rows()), as_json)


@app.command()
def datasets(as_json: AsJson = False) -> None:
    """List the data sets, and how each lies on disk.

    Example: fedapp datasets
    """
    from fedapp.data.datasets import DATASETS

    rows = [
        {
            "dataset": name,
            "classes": info.num_classes or "any",
            "image": info.image_size or "any",
            "source": info.source,
            "layout": info.layout,
        }
        for name, info in DATASETS.items()
    ]
    show("Data sets", rows, as_json)


@app.command()
def partition(
    config: Overrides = None,
    project: Project = Path("."),
    plot: Annotated[Path | None, typer.Option(help="Write the distribution as a PNG here.")] = None,
    only_kinds: Annotated[
        bool, typer.Option("--list", help="Print the kinds of partitions instead.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print, and plot, how many training images each client has of each class.

    Example: fedapp partition -c "partition='lda' alpha=0.1 num-clients=10" --plot clients.png
    """
    import numpy as np

    from fedapp.config import RunConfig
    from fedapp.data.listing import client_rows, kind_rows
    from fedapp.run_data import load_partition

    if only_kinds:
        show("Partitions", kind_rows(), as_json)
        return
    resolved = RunConfig.parse({**default_config(project), **read_overrides(config or [])})
    data, parts = load_partition(resolved)
    counts = parts.class_counts(np.asarray(data.train_labels), data.num_classes)
    tests = [len(part) for part in parts.test]
    rows = client_rows(counts, tests, data.classes, nested=as_json)
    show(f"Training images of each client ({resolved.partition})", rows, as_json)
    if plot is not None:
        from fedapp.results import plots

        write_png(plots.label_distribution(counts, data.classes), plot)
    for note in parts.notes:
        print(f"note: {note}", file=sys.stderr)


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write the HTML report of a run again, from the files of its directory.

    Example: fedapp report runs/feddr+-digits-20260101-120000
    """
    from fedapp.results.report import write_report

    print(write_report(run))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    plot: Annotated[
        Path | None, typer.Option(help="Write the overlaid curves as a PNG here.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the comparison as a page here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put runs side by side: figures, means over seeds, paired differences, curves in one plot.

    Example: fedapp compare runs/a runs/b --plot curves.png --html comparison.html
    """
    from fedapp import comparison
    from fedapp.results import plots
    from fedapp.results.run_directory import RunDirectory

    opened = [RunDirectory.load(path) for path in runs]
    compared = comparison.compare(opened)
    if as_json:
        print(json.dumps(compared, indent=2))
    else:
        for title, rows in comparison.tables(compared).items():
            show(title, rows, as_json)
    if plot is not None:
        lines = [(f"{run.summary().get('method')} ({run.name})", run.rounds()) for run in opened]
        write_png(plots.compare_curves(lines), plot)
    if html is not None:
        from fedapp.results.comparison_page import write_comparison

        print(f"wrote {write_comparison(opened, html.absolute())}", file=sys.stderr)


cli_experiments.register(app)
cli_analysis.register(app)
cli_deployment.register(app)
cli_traffic.register(app)
cli_personal.register(app)
papers_commands.register(app)


if __name__ == "__main__":
    main()
