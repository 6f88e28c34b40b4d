"""The `fedapp` command: run and analyse federated trainings.

Each command reads its arguments, calls one function of the package and prints a table, or with
`--json` the same data as JSON.
"""

import sys
from typing import Annotated

import typer

import fedapp
from fedapp.cli import (
    analysis,
    deployment,
    experiments,
    models,
    papers,
    reproduce,
    results,
    run,
    tables,
)
from fedapp.cli.options import Command
from fedapp.cli.state import app as state_app
from fedapp.core.errors import UserError
from fedapp.core.log import configure
from fedapp.core.progress import show_progress
from fedapp.engines.subprocesses import install_signal_handlers

PANELS = {  # the groups of `fedapp --help`
    "Train": (run.run, run.config, run.partition),
    "Look up": (tables.methods, tables.datasets, tables.presets, analysis.measures),
    "Look at finished runs": (
        results.runs,
        results.report,
        results.watch,
        results.compare,
        analysis.analyse,
        models.personalise,
        models.calibrate,
        models.classify,
        models.test,
        models.export,
        analysis.traffic,
        analysis.features,
    ),
    "Train many runs": (
        experiments.sweep,
        papers.papers,
        reproduce.reproduce,
        experiments.bench,
    ),
    "Deploy on real hosts": (deployment.certificates, deployment.doctor),
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # it prints all local variables, which may take minutes
    help="Federated learning on heterogeneous data with Flower.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(fedapp.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Take the options before a command."""


for panel, commands in PANELS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=panel)(command)
app.add_typer(state_app, name="state", rich_help_panel="Look at finished runs")


def main() -> None:
    """Run the command line; a user's mistake gives an error message and exit code 2.

    So does a file that cannot be read or written. SIGTERM ends a command in the same way as Ctrl-C.
    """
    install_signal_handlers()
    try:
        configure()
        show_progress()
        app()
    except (UserError, OSError) as mistake:
        print(f"fedapp: {mistake}", file=sys.stderr)
        sys.exit(2)
