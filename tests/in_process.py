"""A Flower grid without other processes: nodes answer in this process, in an order from a seed.

It runs the real ServerApp parts, strategies, messages and ClientApp handlers. A federation of any
shape starts in milliseconds. The tests in tests/simulation use real processes.
"""

import random
import tomllib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from clients.base import LocalClient
from clients.update import Update
from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.preflight import wait_for_nodes
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.base import ClientStrategy
from strategies.rounds.records import from_array_record, to_array_record

ROOT = Path(__file__).parents[1]
DEFAULTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
QUICK = {
    "num-rounds": 2,
    "num-clients": 10,
    "local-epochs": 1,
    "participation": 0.5,
    "batch-size": 50,
}

Tamper = Callable[[Message], Message]


def settings(**changes: Any) -> dict[str, Any]:
    """Return a quick run configuration; keyword names are keys with underscores."""
    return {**DEFAULTS, **QUICK, **{key.replace("_", "-"): v for key, v in changes.items()}}


class ShuffledGrid(InProcessGrid):
    """A grid whose replies arrive in an order drawn from a seed; `tamper` may change them."""

    def __init__(
        self, run_config: dict[str, Any], nodes: int, seed: int = 0, tamper: Tamper | None = None
    ):
        super().__init__(run_config, nodes)
        self.random = random.Random(seed)
        self.tamper = tamper or (lambda reply: reply)
        self.log: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        self.log += pushed
        return super().push_messages(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [message_id for message_id in message_ids if message_id in self.waiting]
        chosen = self.random.sample(ready, k=min(len(ready), self.random.randint(1, 3)))
        return [self.tamper(self.answer(self.waiting.pop(each))) for each in chosen]


def federate(
    run_config: dict[str, Any],
    nodes: int = 3,
    seed: int = 0,
    tamper: Tamper | None = None,
    state_key: str = "",
    node_configs: Sequence[Mapping[str, Any]] = (),
    after_round: Callable[[ClientStrategy], None] = lambda strategy: None,
) -> tuple[dict[str, np.ndarray], ClientStrategy, list[dict[str, np.ndarray]]]:
    """Train a federation; returns the final arrays, the strategy, and each round's arrays.

    `node_configs` are added to the nodes' own, in the order of the nodes.
    """
    config = parse_config(run_config)
    process = ProcessContext(config)
    grid = ShuffledGrid(run_config, nodes, seed, tamper)
    for context, added in zip(grid.contexts.values(), node_configs, strict=False):
        context.node_config.update(added)
    expected = {"configuration": config.fingerprint(), "head": process.head_hash()}
    federation = wait_for_nodes(grid, config.num_clients, expected, 5)
    federation = replace(federation, newcomers=config.new_clients)
    key = state_key or uuid.uuid4().hex
    strategy = build_strategy(config, process, federation, key)
    history: list[dict[str, np.ndarray]] = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        history.append(from_array_record(arrays))
        after_round(strategy)

    initial = {n: t.detach().numpy() for n, t in process.slot.shared.items()}
    strategy.start(grid, to_array_record(initial), config.num_rounds, 60, evaluate_fn=evaluate)
    return history[-1], strategy, history


def train_one(folder: Path, **changes: Any) -> RunDirectory:
    """Train run "one" of 4 clients, with a checkpoint of every round; return its directory."""
    values = settings(
        output_dir=str(folder), run_name="one", num_clients=4, shards=5,
        **{"method": "fedavg", "checkpoint_every": 1, "lr_schedule": "constant",
           "participation": 1.0, **changes},
    )  # fmt: skip
    server_app.run(InProcessGrid(values), values, "", 0.0)
    return RunDirectory.load(folder / "one")


def break_client(monkeypatch: Any, clients: set[int], error: Exception) -> None:
    """Make the NumPyClients of some client ids raise an error."""
    original = ProcessContext.client

    def broken(self: ProcessContext, client: int, *more: Any) -> Any:
        numpy_client = original(self, client, *more)
        if client in clients:
            monkeypatch.setattr(numpy_client, "work", lambda *_: (_ for _ in ()).throw(error))
        return numpy_client

    monkeypatch.setattr(ProcessContext, "client", broken)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Assert that two models are equal bit for bit."""
    assert list(one) == list(other)
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name, strict=True)


def differ(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Return whether any value of two models differs."""
    return any(not np.array_equal(array, other[name]) for name, array in one.items())


def work(client: LocalClient, server_round: int = 1, lr: float = 0.05) -> Update:
    """Let a client train one round from the model that its process has now."""
    received = dict(zip(client.shared, client.get_parameters({}), strict=True))
    return client.work(received, server_round, lr)
