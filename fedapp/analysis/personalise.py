"""`fedapp personalise`: fine-tune a finished run's saved model on every client, in one process.

The second stage of two-step personalisation needs only the final model and the clients' data, so it
can be repeated later with other settings.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.base import LocalClient, Scalar
from clients.training.arrays import to_arrays
from clients.training.local_training import LossDiverged
from fedapp.analysis.global_run import OVERRIDABLE, run_values
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, safetensors_bytes, write_atomically
from fedapp.core.progress import tracked
from fedapp.methods.fine_tuned import PROTOCOLS
from fedapp.results.folders import check_writable, writing
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.global_model import load_weights
from fedapp.runtime.opening import reopened
from fedapp.runtime.process import ProcessContext
from strategies.rounds.client_evaluation import summarise_clients

CHANGEABLE = ("finetune-*", *OVERRIDABLE, "beta", "tau", "batch-size", "test-batch-size")


def personalise(
    path: Path, overrides: Mapping[str, Any], export: Path | None = None
) -> dict[str, Any]:
    """Fine-tune a run's model.safetensors on every client; write RUN/personal.json.

    Args:
        path: the run directory.
        overrides: finetune-* keys and a few others; other keys have the run's values.
        export: new folder for client-<id>.safetensors, each client's whole model.

    Returns:
        Mean, spread, worst client and quartiles of the accuracies on the clients' test splits, the
        settings, and each client's scores under "clients".

    Raises:
        UserError: the run's model is missing or damaged, its clients' data are on other hosts, or a
            key may not be changed.
    """
    run = RunDirectory.load(path)
    check_writable(run.path, "run directory")
    config = _configuration(run, overrides)
    process = reopened(run, config)
    load_weights(process.model, run)
    with _new_folder(export) as folder:
        rows = _fine_tune_clients(process, config, folder)
    results = {**_settings(config), **summarise_clients(rows), "clients": rows}
    with writing(run.path):
        write_atomically(run.path / "personal.json", json_text(results, 2).encode())
    return results


def _fine_tune_clients(
    process: ProcessContext, config: RunConfig, folder: Path | None
) -> dict[int, dict[str, float]]:
    """Fine-tune the process's model on every client, and write the models to a folder, if any.

    Returns each client's loss, number of test examples and scores.
    """
    received = list(to_arrays(process.slot.shared).values())
    evaluation: dict[str, Scalar] = {"server_round": config.num_rounds, "lr": 0.0}
    rows: dict[int, dict[str, float]] = {}
    for client in tracked(range(config.num_clients), "fine-tuning clients"):
        own = process.client(client, server_round=config.num_rounds)
        try:
            loss, count, scores = own.evaluate(received, evaluation)
        except LossDiverged as reason:
            raise UserError(f"client {client}: {reason}; give a smaller finetune-lr") from None
        rows[client] = {"examples": count, "loss": loss, **scores}  # type: ignore[dict-item]
        if folder is not None:
            _export(own, process, folder / f"client-{client}.safetensors")
    return rows


def _settings(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in config.flat().items() if key.startswith("finetune-")}


def _configuration(run: RunDirectory, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's configuration, with a second stage even if the run had none."""
    remedy = (
        "cannot be fine-tuned here: train with finetune-epochs, and the hosts fine-tune it after "
        "the last round"
    )
    values, saved = run_values(run, overrides, CHANGEABLE, remedy), run.config()
    if "finetune-protocol" in overrides or not saved.get("finetune-epochs"):
        kept = {
            *overrides,
            "finetune-protocol",
        }  # not reset: a preset may set it
        defaults = RunConfig.defaults()
        values |= {k: v for k, v in defaults.items() if k.startswith("finetune-") and k not in kept}
    if values.get("finetune-epochs", "auto") == "auto":
        once = parse_config({**values, "finetune-epochs": 1})
        protocol = PROTOCOLS[once.finetune_protocol]
        values["finetune-epochs"] = protocol.epochs(int(once.local_epochs))
    config = parse_config(values)
    if not config.finetune_epochs:
        raise UserError("finetune-epochs is 0, so nothing would be trained; give 1 or more")
    return config


@contextmanager
def _new_folder(export: Path | None) -> Iterator[Path | None]:
    """Make a folder, if one is named, and remove it again if the block fails."""
    if export is None:
        yield None
        return
    try:
        export.mkdir(mode=0o700, parents=True)  # models reveal information about data
    except FileExistsError:
        raise UserError(f"{export} exists already; name a new folder for the models") from None
    except OSError as error:
        raise UserError(f"{export} cannot be made: {error.strerror}") from None
    try:
        yield export
    except BaseException:
        shutil.rmtree(export, ignore_errors=True)
        raise


def _export(client: LocalClient, process: ProcessContext, path: Path) -> None:
    metadata = {**process.metadata(), "client": str(client.client)}
    write_atomically(path, safetensors_bytes(client.model.state_dict(), metadata))
