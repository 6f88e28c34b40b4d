"""`fedapp personalise`: the personal models of a finished run's clients, tested and written.

Where the method has a global model, every client fine-tunes that of the run. This second stage
needs only the final model and the clients' data, so it can be repeated later with other settings.
Where clients have models of their own, each one's stored state is loaded, as for a test after the
last round.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from clients.base import LocalClient
from clients.training.arrays import to_arrays
from clients.training.local_training import LossDiverged
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, safetensors_bytes, write_atomically
from fedapp.core.progress import tracked
from fedapp.methods.fine_tuned import PROTOCOLS
from fedapp.methods.table import find_method
from fedapp.results.final_model import not_its_model, read_model
from fedapp.results.folders import check_writable, writing
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import check_extension, reopened
from fedapp.runtime.process.global_model import load_weights
from fedapp.runtime.process.heterogeneous_models import own_model
from fedapp.runtime.server.strategy import build_strategy
from fedapp.trained_models.finished_run import OVERRIDABLE, client_after, run_values
from strategies.rounds.base import ClientStrategy
from strategies.rounds.client_evaluation import summarise_clients
from strategies.rounds.federation import Federation
from strategies.threads import threads

CHANGEABLE = ("finetune-*", *OVERRIDABLE, "beta", "tau", "batch-size", "test-batch-size")
CHANGEABLE_IF_KEPT = (*OVERRIDABLE, "state-dir", "test-batch-size")


@dataclass(frozen=True)
class _Sent:
    """What clients get before they are tested: as a server would send it, with their states."""

    arrays: Arrays
    server_round: int
    lr: float = 0.0
    extras: Mapping[str, Arrays] = field(default_factory=dict)
    state_key: str = ""  # of the clients' stored states; empty: they need none


def personalise(
    path: Path, overrides: Mapping[str, Any], export: Path | None = None, client: int | None = None
) -> dict[str, Any]:
    """Make and test the clients' personal models; write RUN/personal.json for all clients.

    Args:
        path: the run directory.
        overrides: data-dir, device and a few others; finetune-* keys where clients fine-tune a
            global model, state-dir where they have kept models of their own. Other keys have the
            run's values.
        export: new folder for client-<id>.safetensors, each client's whole model.
        client: only this client's, and no personal.json; needed where each client's data are on
            its own host.

    Returns:
        Mean, spread, worst client and quartiles of the accuracies, the settings of fine-tuning, and
        each client's scores under "clients". A client whose model is not stored is left out.

    Raises:
        UserError: the run's model is missing or damaged, the clients' data or states are on other
            hosts, or a key may not be changed.
    """
    run = RunDirectory.load(path)
    check_writable(run.path, "run directory")
    check_extension(run)
    fine_tunes = find_method(str(run.config().get("method"))).has_global_model
    config = (_fine_tuning if fine_tunes else _as_trained)(run, overrides)
    chosen = _chosen(run, config, client)
    process = reopened(run, config, client if config.partition == "own" else None)
    sent = _for_fine_tuning(run, process) if fine_tunes else _for_kept_models(run, process)
    with _new_folder(export) as folder, threads(config.threads):
        rows = _test_clients(process, sent, chosen, folder)
        if not rows:
            raise _no_model(run, client)
    results = _settings(config) if fine_tunes else {}
    results |= {**summarise_clients(rows, config.training_clients), "clients": rows}
    if client is None:
        with writing(run.path):
            write_atomically(run.path / "personal.json", json_text(results, 2).encode())
    return results


def _chosen(run: RunDirectory, config: RunConfig, client: int | None) -> Sequence[int]:
    """Return the clients to test; raises UserError if there are no such clients here."""
    if client is None and config.partition == "own":
        raise UserError(
            f"the data of the clients of {run.path} stay on their hosts (partition 'own'), so their"
            " personal models are made there, one at a time: copy the run directory to a client's "
            "host, and name the client by --client, its data by data-dir (node-config) and, if it "
            "has one, its state-dir"
        )
    if client is None:
        return range(config.num_clients)
    if not 0 <= client < config.num_clients:
        raise UserError(
            f"client {client} does not exist; run '{run.name}' has the clients 0 to "
            f"{config.num_clients - 1}"
        )
    return [client]


def _for_fine_tuning(run: RunDirectory, process: ProcessContext) -> _Sent:
    """Return the final model."""
    load_weights(process.model, run)
    return _Sent(to_arrays(process.slot.shared), process.config.num_rounds)


def _for_kept_models(run: RunDirectory, process: ProcessContext) -> _Sent:
    """Return what the server would send for a test after the last round."""
    rounds = run.rounds()
    if not rounds:
        raise UserError(f"run '{run.name}' has no round, so its clients have no models")
    last, extras = rounds[-1], {}
    if not process.method.saves_server_state:
        _check_nothing_else_is_sent(process)
        load_weights(process.model, run)
        arrays = to_arrays(process.slot.shared)
    else:
        tensors, shared = read_model(run), process.slot.shared
        strategy = build_strategy(process.config, process, Federation({}, {}), run.state_key())
        try:
            arrays = {name: tensors[name] for name in shared}
            if state := {name: array for name, array in tensors.items() if name not in shared}:
                strategy.load_state(state)
        except KeyError as missing:
            raise not_its_model(run.model_path, f"it lacks {missing}") from None
        extras = strategy.evaluation_extras(range(process.config.num_clients))
    return _Sent(arrays, last["round"], last.get("lr", 0.0), extras, run.state_key())


def _check_nothing_else_is_sent(process: ProcessContext) -> None:
    """Raise UserError if clients get something for their tests that a run does not save."""
    kind = process.method.server.kind
    if kind.evaluation_extras is not ClientStrategy.evaluation_extras:
        raise UserError(
            f"the server of method '{process.config.method}' ({kind.__name__}) sends clients more "
            "than the model for their tests (evaluation_extras), which a run does not save; have "
            "the clients keep it in their states"
        )


def _test_clients(
    process: ProcessContext, sent: _Sent, clients: Sequence[int], folder: Path | None
) -> dict[int, dict[str, float]]:
    """Test each client's personal model, and write the models to a folder, if any.

    Returns each client's loss, number of test examples and scores; none of a client whose model is
    not stored here.
    """
    rows: dict[int, dict[str, float]] = {}
    for client in tracked(clients, "testing clients' models"):
        own = client_after(process, client, sent.server_round, sent.state_key, sent.extras)
        if own is None:
            continue
        try:
            received = [sent.arrays[name] for name in own.shared]
            evaluation = {"server_round": sent.server_round, "lr": sent.lr}
            loss, count, scores = own.evaluate(received, evaluation)  # type: ignore[arg-type]
        except LossDiverged as reason:
            remedy = "" if sent.state_key else "; give a smaller finetune-lr"
            raise UserError(f"client {client}: {reason}{remedy}") from None
        rows[client] = {"examples": count, "loss": loss, **scores}  # type: ignore[dict-item]
        if folder is not None:
            _export(own, process, folder / f"client-{client}.safetensors")
    return rows


def _no_model(run: RunDirectory, client: int | None) -> UserError:
    """Return the error for clients of which none has a model here."""
    who = "every client" if client is None else f"client {client}"
    return UserError(
        f"{who} of run '{run.name}' lacks a model on this machine: train with keep-state=true, give"
        " the state-dir of the run, and name a client that has trained"
    )


def _settings(config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in config.flat().items() if key.startswith("finetune-")}


def _as_trained(run: RunDirectory, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's configuration, with other places of data and states."""
    return parse_config(run_values(run, overrides, CHANGEABLE_IF_KEPT))


def _fine_tuning(run: RunDirectory, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's configuration, with a second stage even if the run had none."""
    values, saved = run_values(run, overrides, CHANGEABLE), run.config()
    if "finetune-protocol" in overrides or not saved.get("finetune-epochs"):
        kept = {*overrides, "finetune-protocol"}  # not reset: a preset may set it
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
        raise UserError(
            f"{export.absolute()} exists already; name a new folder for the models"
        ) from None
    except OSError as error:
        raise UserError(f"{export} cannot be made: {error.strerror}") from None
    try:
        yield export
    except BaseException:
        shutil.rmtree(export, ignore_errors=True)
        raise


def _export(client: LocalClient, process: ProcessContext, path: Path) -> None:
    """Write the model that a client predicts with, a factor of its logits included."""
    tensors, scale = dict(own_model(client.model).state_dict()), client.logit_scale()
    scale = torch.as_tensor(scale, device=tensors["head.weight"].device).reshape(-1)
    tensors["head.weight"] = tensors["head.weight"] * scale[:, None]
    if "head.bias" in tensors:
        tensors["head.bias"] = tensors["head.bias"] * scale
    metadata = {**process.metadata(), "client": str(client.client)}
    write_atomically(path, safetensors_bytes(tensors, metadata))
