"""`fedapp state`: list, export and remove the states that clients have stored.

Personalised models can remain after their run and take gigabytes. This module turns the errors of
the store (`clients/state/store.py`) into error messages for users.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.cli.options import AsJson, Command, show
from fedapp.core.errors import UserError
from fedapp.core.paths import state_folder
from fedapp.results.formatting import megabytes

if TYPE_CHECKING:
    from clients.state.listing import RunState

app = typer.Typer(no_args_is_help=True, help="The states that clients store between rounds.")

StateDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the states; default: $FEDAPP_STATE, or CACHE-state."),
]


@app.command("list", cls=Command)
def list_command(state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """List the runs with stored client states, the last changed first.

    Example: fedapp state list --json
    """
    from clients.state.listing import list_states

    folder = state_folder(state_dir)
    with _sentences():
        rows = list_states(folder)
    _show(f"States in {folder}", rows, as_json)


@app.command(cls=Command)
def export(
    run: Annotated[str, typer.Argument(help="The run, as `fedapp state list` names it.")],
    client: Annotated[int, typer.Argument(help="The client's id, from 0.")],
    target: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    state_dir: StateDir = None,
) -> None:
    """Export one client's state, such as its personalised model, to a safetensors file.

    Example: fedapp state export my-run 3 client-3.safetensors
    """
    from clients.state.listing import export_state

    with _sentences():
        size = export_state(state_folder(state_dir), run, client, target)
    print(f"wrote {target.absolute()} ({megabytes(size)})")


@app.command(cls=Command)
def clean(
    run: Annotated[str | None, typer.Option(help="Remove only this run's states.")] = None,
    keep: Annotated[int, typer.Option(min=0, help="Number of last changed runs to keep.")] = 0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove the states; without it, only list them.")
    ] = False,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove the client states of one run, or of all runs except the last changed ones.

    Example: fedapp state clean --keep 2 --yes
    """
    from clients.state.listing import clean as remove

    folder = state_folder(state_dir)
    with _sentences():
        rows = remove(folder, run, keep, dry_run=not yes)
    _show(f"{'Removed from' if yes else 'To remove from'} {folder}", rows, as_json)
    if rows and not yes:
        freed = megabytes(sum(row.bytes for row in rows))
        print(f"nothing removed; add --yes to remove {freed}", file=sys.stderr)


@contextmanager
def _sentences() -> Iterator[None]:
    """Turn the store's errors into user errors."""
    from clients.state.store import StateError

    try:
        yield
    except StateError as error:
        raise UserError(str(error)) from None


def _show(title: str, rows: "list[RunState]", as_json: bool) -> None:
    show(title, [_row(row, as_json) for row in rows], as_json)


def _row(row: "RunState", as_json: bool) -> dict[str, Any]:
    size: dict[str, Any] = {"bytes": row.bytes} if as_json else {"size": megabytes(row.bytes)}
    modified = datetime.fromtimestamp(row.modified).astimezone().isoformat(timespec="seconds")
    return {
        "run": row.run_key,
        "clients": row.clients,
        **size,
        "last_round": row.last_round,
        "modified": modified,
        "damaged": row.damaged,
    }
