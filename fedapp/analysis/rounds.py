"""Measuring one round: its clients' local models are trained again, looked at, and forgotten.

A round's local models are not kept: with a hundred clients they would fill a disk. They are a
function of what the round started from and of the client, so training them again gives the same
models bit for bit. What that costs is measured, and said. Clients' states are read as they were
when the round began, and never written.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from clients.state.store import StateError
from clients.training.local_training import LossDiverged
from fedapp.analysis.formulas.features import mean
from fedapp.analysis.measures.base import Figures, Measure
from fedapp.analysis.measures.epochs import stop_of, watched
from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.measures.views import Local, Stop, View, borrowed, load, look
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.runtime.process import ProcessContext
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import Task


@dataclass(frozen=True)
class Start:
    """What a round starts from: the model and, for some methods, more than that."""

    arrays: Arrays
    extras: Mapping[str, Arrays] = field(default_factory=dict)  # sent beside it
    known: tuple[int, ...] = ()  # clients that have trained before, so they must have a state
    state_key: str = ""  # under which clients keep their states; empty: they keep nothing
    missing: str = ""  # what is not known any more, in words; empty: nothing

    @classmethod
    def of(cls, strategy: ClientStrategy, arrays: Arrays) -> "Start":
        """Return what a strategy's next round starts from."""
        return cls(arrays, strategy.extras(()), strategy.known, strategy.state_key)


@dataclass(frozen=True)
class RoundModels:
    """What a round starts from, the model it ends with, and the clients to look at."""

    server_round: int
    start: Start
    result: Arrays | None  # None: not known any more
    clients: Sequence[int]
    lr: float


@dataclass
class Costs:
    """What the training again took, and whom it failed for."""

    seconds: float = 0.0
    trained: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)


def measure_round(
    process: ProcessContext, models: RoundModels, words: Sequence[str]
) -> dict[str, Any]:
    """Return the chosen measures of a round; the node's model is put back afterwards.

    Returns:
        "round", "clients" (ids trained again), "diverged" (ids whose training failed), "seconds"
        and "training_seconds", and "measures": for each of `words` its "clients" (one row each),
        their "mean" and "std" (population, without NaN), and "model" (of the global model).

    Raises:
        UserError: local models are needed, and what they were trained from is not known any more.
    """
    start = time.perf_counter()
    costs = Costs()
    with borrowed(process):
        result = None if models.result is None else _view(process, models.result)
        received = _view(process, models.start.arrays)
        measures = {word: MEASURES[word](process, received, result) for word in words}
        rows: dict[str, list[Figures]] = {word: [] for word in measures}
        if any(measure.local for measure in measures.values()):
            follow = any(measure.epochs for measure in measures.values())
            for local in _locals(process, models, received, costs, follow):
                for word, measure in measures.items():
                    rows[word].append({"client": local.client, **measure.of_client(local)})
        load(process, models.start.arrays if models.result is None else models.result)
        found = {word: _summary(rows[word], measure) for word, measure in measures.items()}
    return {
        "round": models.server_round,
        "clients": costs.trained,
        "diverged": costs.diverged,
        "training_seconds": costs.seconds,
        "seconds": time.perf_counter() - start,
        "measures": found,
    }


def cost_sentence(found: dict[str, Any]) -> str:
    """Say what a round's measures cost."""
    return (
        f"analysis of round {found['round']}: {len(found['clients'])} clients trained again in "
        f"{found['training_seconds']:.1f} s, {found['seconds']:.1f} s in all"
    )


def _locals(
    process: ProcessContext, models: RoundModels, received: View, costs: Costs, follow: bool
) -> Iterator[Local]:
    """Train each client again from the received model, and give what its model shows.

    With `follow` after each epoch, too.
    """
    counts = process.data.class_counts()[0]
    for client in models.clients:
        path = [stop_of(received, process, models.start.arrays)] if follow else []
        start = time.perf_counter()
        try:
            _train(process, client, models, path)
        except LossDiverged:
            costs.diverged.append(client)
            continue
        finally:
            costs.seconds += time.perf_counter() - start
        costs.trained.append(client)
        erased = process.data.dropped_class(client, models.server_round)
        view = look(process)
        path += [stop_of(view, process)] if follow else []
        yield Local(client, view, received, counts[client], erased, path)


def _train(process: ProcessContext, client: int, models: RoundModels, path: list[Stop]) -> None:
    """Leave the client's trained model in the node's; the client's state stays as it is.

    A path that has its first stop gets those between the epochs.
    """
    start, server_round = models.start, models.server_round
    task = Task(
        server_round, (client,), models.lr, "size", 1, state_key=start.state_key, known=start.known
    )
    try:
        if start.missing:
            raise StateError(f"{start.missing} was not kept")
        memory = process.memory(client, task, server_round)
        memory = memory and replace(memory, missing="error")  # a fresh start would be another model
        numpy_client = process.client(client, memory, start.extras)
        if path:
            epochs = int(process.config.local_epochs)
            see = partial(_see, process, path)
            numpy_client.data = watched(numpy_client.data, epochs, see)
        arrays = [np.asarray(start.arrays[name]) for name in numpy_client.shared]
        numpy_client.fit(arrays, {"server_round": server_round, "lr": models.lr})
    except StateError as reason:
        raise UserError(
            f"client {client} cannot train round {server_round} again: {reason} (local models of "
            "such methods are measured where the clients' states are: during the run, or in the "
            "last round of one with checkpoint-every=1 keep-state=true)"
        ) from None


def _see(process: ProcessContext, path: list[Stop]) -> None:
    """Add what the model shows between two epochs to a path; its training goes on as it was."""
    path.append(stop_of(look(process), process))
    process.model.train()


def _view(process: ProcessContext, arrays: Arrays) -> View:
    load(process, arrays)
    return look(process)


def _summary(rows: list[Figures], measure: Measure) -> dict[str, Any]:
    """Gather a measure's figures; rows without a figure of their own are left out."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "client"]
    nothing = float("nan")
    columns = {name: np.array([row.get(name, nothing) for row in rows]) for name in names}
    return {
        "clients": rows if names else [],
        "mean": {name: mean(values) for name, values in columns.items()},
        "std": {name: _deviation(values) for name, values in columns.items()},
        "model": measure.of_model(),
    }


def _deviation(values: np.ndarray) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.std()) if kept.size else float("nan")
