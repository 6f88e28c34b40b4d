"""Measure one round: train its clients' local models again, measure them, and discard them.

Runs do not store local models, which would fill a disk with a hundred clients. A local model
depends only on the start of the round and on the client, so repeated training gives the same model
bit for bit. The cost is measured and reported. Clients' states are read as they were at the start
of the round, and never written.
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
from fedapp.analysis.measures.views import Local, Stop, View, borrowed, load, view_of
from fedapp.config.run_config import RunConfig
from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, numpy_rng, sample_clients
from fedapp.runtime.process.client_roles import attack, slow_down
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.base import ClientStrategy


@dataclass(frozen=True)
class Start:
    """The start of a round: the model and, for some methods, further data."""

    arrays: Arrays
    extras: Mapping[str, Arrays] = field(default_factory=dict)  # sent with the model
    accepted: Mapping[int, int] = field(default_factory=dict)  # by client: its last round before
    state_key: str = ""  # the name of the clients' stored states; empty: they keep none
    missing: str = ""  # a description of lost data; empty: none is lost
    evaluated: Arrays | None = None  # the model that is tested; None: `arrays`

    @classmethod
    def of(cls, strategy: ClientStrategy, arrays: Arrays) -> "Start":
        """Return the start of a strategy's next round."""
        accepted, evaluated = dict(strategy.accepted), strategy.model_to_evaluate(arrays)
        key = strategy.state_key
        return cls(arrays, strategy.extras(()), accepted, key, evaluated=evaluated)

    @property
    def tested(self) -> Arrays:
        """The model that the method evaluates."""
        return self.arrays if self.evaluated is None else self.evaluated


@dataclass(frozen=True)
class RoundModels:
    """The start of a round, its result, and the clients to measure."""

    server_round: int
    start: Start
    result: Arrays | None  # as it is tested; None: unknown
    clients: Sequence[int]
    lr: float


@dataclass
class Costs:
    """The cost of the repeated training, and the clients for which it failed."""

    seconds: float = 0.0
    trained: list[int] = field(default_factory=list)
    diverged: list[int] = field(default_factory=list)


def measure_round(
    process: ProcessContext, models: RoundModels, words: Sequence[str]
) -> dict[str, Any]:
    """Return the selected measures of a round; the process's model is restored afterwards.

    Returns:
        "round", "clients" (ids trained again), "diverged" (ids whose training failed), "seconds"
        and "training_seconds", and "measures": for each of `words` its "clients" (one row each),
        their "mean" and "std" (population, without NaN), "diverged", and "model" (of the global
        model after the round, or with "before" of the one before it, as the new one is unknown).

    Raises:
        UserError: local models are needed, and the data for their training are lost.
    """
    start = time.perf_counter()
    costs = Costs()
    with borrowed(process):
        result = None if models.result is None else _view(process, models.result)
        received = _view(process, models.start.arrays)
        counts = _cohort_counts(process, models.server_round)
        measures = {word: MEASURES[word](process, received, result, counts) for word in words}
        rows: dict[str, list[Figures]] = {word: [] for word in measures}
        if any(measure.local for measure in measures.values()):
            follow = any(measure.epochs for measure in measures.values())
            for local in _locals(process, models, received, costs, follow):
                for word, measure in measures.items():
                    rows[word].append({"client": local.client, **measure.of_client(local)})
        load(process, models.start.arrays if models.result is None else models.result)
        summaries = {
            word: _summary(rows[word], measure, costs) for word, measure in measures.items()
        }
    return {
        "round": models.server_round,
        "clients": costs.trained,
        "diverged": costs.diverged,
        "training_seconds": costs.seconds,
        "seconds": time.perf_counter() - start,
        "measures": summaries,
    }


def cost_sentence(entry: dict[str, Any]) -> str:
    """Return one line about the cost of a round's measures."""
    return (
        f"analysis of round {entry['round']}: {len(entry['clients'])} clients trained again in "
        f"{entry['training_seconds']:.1f} s, {entry['seconds']:.1f} s in all"
    )


def _locals(
    process: ProcessContext, models: RoundModels, received: View, costs: Costs, follow: bool
) -> Iterator[Local]:
    """Train each client again from the received model, and yield the view of its model.

    With `follow` the result also has the model after each epoch.
    """
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
        view = view_of(process)
        path += [stop_of(view, process)] if follow else []
        path += path[-1:] * (int(process.config.local_epochs) + 1 - len(path))  # of a slow client
        present = _counts(process, client, models.server_round)
        yield Local(client, view, received, present, erased, path)


def _cohort_counts(process: ProcessContext, server_round: int) -> np.ndarray:
    """Return [C], the images of each class that all clients of a round have together."""
    cohort = cohort_of(process.config, server_round, 0)
    return np.sum([_counts(process, client, server_round) for client in cohort], axis=0)


def _counts(process: ProcessContext, client: int, server_round: int) -> np.ndarray:
    """Return [C], a client's images of each class, without the class that it lacks in a round."""
    return process.data.client(client, server_round).class_counts.cpu().numpy()


def _train(process: ProcessContext, client: int, models: RoundModels, path: list[Stop]) -> None:
    """Train a client in the process's model; the client's state does not change.

    If `path` has its first stop, the stops between the epochs are added.
    """
    start, server_round = models.start, models.server_round
    try:
        if start.missing:
            raise StateError(f"{start.missing} was not kept")
        accepted = start.accepted.get(client, 0)
        memory = process.memory(client, start.state_key, server_round, accepted)
        memory = memory and replace(memory, missing="error")  # a new state would give another model
        numpy_client = process.client(client, memory, start.extras, server_round)
        slow_down(process.config, numpy_client, server_round)
        if path:
            see = partial(_see, process, path)
            epochs = numpy_client.settings.epochs
            numpy_client.data = watched(numpy_client.data, epochs, see)
        received = {name: np.asarray(start.arrays[name]) for name in numpy_client.shared}
        update = numpy_client.work(received, server_round, models.lr)
        malicious = process.attackers
        if attack(process.config, malicious, numpy_client, received, update, server_round):
            load(process, update.shared)
    except StateError as error:
        raise UserError(
            f"client {client} cannot train round {server_round} again: {error} (local models of "
            "such methods are measured where the clients' states are: during the run, or in the "
            "last round of one with checkpoint-every=1 keep-state=true)"
        ) from None


def _see(process: ProcessContext, path: list[Stop]) -> None:
    """Add a stop between two epochs to a path, and set the model to training mode again."""
    path.append(stop_of(view_of(process), process))
    process.model.train()


def _view(process: ProcessContext, arrays: Arrays) -> View:
    load(process, arrays)
    return view_of(process)


def _summary(rows: list[Figures], measure: Measure, costs: Costs) -> dict[str, Any]:
    """Collect a measure's results; without results per client "clients" is empty."""
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "client"]
    missing = float("nan")
    columns = {name: np.array([row.get(name, missing) for row in rows]) for name in names}
    return {
        "clients": rows if names else [],
        "mean": {name: mean(values) for name, values in columns.items()},
        "std": {name: _deviation(values) for name, values in columns.items()},
        "model": measure.of_model(),
        **({"diverged": costs.diverged} if measure.local and costs.diverged else {}),
        **({"before": True} if measure.result is None else {}),
    }


def _deviation(values: np.ndarray) -> float:
    kept = values[~np.isnan(values)]
    return float(kept.std()) if kept.size else float("nan")


def cohort_of(config: RunConfig, server_round: int, limit: int) -> list[int]:
    """Return at most `limit` clients of a round's cohort, drawn at random; 0: all of them.

    The first ones would not stand for all where clients are in an order, as with feature skew.
    """
    clients, share = config.training_clients, config.participation
    cohort = sample_clients(config.seed, server_round, clients, share)
    if not 0 < limit < len(cohort):
        return cohort
    rng = numpy_rng(config.seed, Stream.ANALYSIS, server_round)
    return sorted(rng.choice(cohort, limit, replace=False).tolist())
