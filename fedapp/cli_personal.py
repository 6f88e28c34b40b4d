"""The command that makes personal models out of a finished run's global one.

Apart from cli.py because it reads a finished run, as cli_analysis does; heavy imports happen inside
the command, as there.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedapp.cli_options import AsJson, show


def register(app: typer.Typer) -> None:
    """Add the command of this module to the command line."""
    app.command()(personalise)


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
    from fedapp.overrides import read_overrides
    from fedapp.personalise import personalise as fine_tune
    from fedapp.results.files import json_text
    from fedapp.results.formatting import clients_headline

    found = fine_tune(run, read_overrides(config or []), export)
    if as_json:
        print(json_text(found, 2), end="")
        return
    settings = {key: str(value) for key, value in found.items() if key.startswith("finetune-")}
    lines: list[tuple[str, Any]] = [*settings.items(), *clients_headline(found)]
    show(f"Personal models of {run.name}", [{"": k, "value": v} for k, v in lines], False)
