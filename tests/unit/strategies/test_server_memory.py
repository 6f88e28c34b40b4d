"""The server's memory does not grow with the cohort: replies are reduced as they arrive."""

import tracemalloc

import numpy as np
import pytest
from flwr.app import Message
from in_process import settings

from fedapp.engines.in_process import InProcessGrid
from fedapp.engines.local_grid import FIRST_NODE
from strategies.fedavg import FedAvg
from strategies.rounds.base import ClientStrategy
from strategies.rounds.federation import Federation
from strategies.rounds.records import (
    ARRAYS,
    TASK,
    ClientResult,
    Task,
    extra_records,
    from_array_record,
    pack_report,
    to_array_record,
)
from strategies.scaffold import Scaffold

EXAMPLES = 50
MODEL = {"weight": np.ones(250_000, np.float32)}  # 1 MB


class ScriptedGrid(InProcessGrid):
    """Every node answers at once with the received model plus its number, and with the extras."""

    def answer(self, message: Message) -> Message:
        task = Task.from_record(message.content.config_records[TASK])
        received = from_array_record(message.content.array_records[ARRAYS])
        shift = np.float32(message.metadata.dst_node_id - FIRST_NODE)
        content = pack_report(
            [ClientResult(task.clients[0], EXAMPLES, 1, 1.0, 0.1, 10**6, 1.0)], []
        )
        content[ARRAYS] = to_array_record({n: a + shift for n, a in received.items()})
        for name, group in extra_records(message.content).items():
            content[name] = to_array_record(group)
        return Message(content, reply_to=message)


def peak(kind: type[ClientStrategy], clients: int) -> float:
    """Return the most megabytes that one round with this many nodes held, and check its mean."""
    grid = ScriptedGrid(settings(), nodes=clients)
    federation = Federation(
        {client: FIRST_NODE + client for client in range(clients)},
        dict.fromkeys(range(clients), EXAMPLES),
    )
    strategy = kind(
        federation, cohort=lambda r: list(range(clients)), lr=lambda r: 0.1, trained=["weight"]
    )
    if kind is Scaffold:
        strategy.load_state(MODEL)  # c, which every node gets
    models = []
    initial = to_array_record(MODEL)
    tracemalloc.start()
    strategy.start(
        grid, initial, 1, 60, evaluate_fn=lambda r, arrays: models.append(from_array_record(arrays))
    )
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    np.testing.assert_allclose(models[0]["weight"], 1 + (clients - 1) / 2, rtol=1e-6)
    return megabytes


@pytest.mark.parametrize("kind", [FedAvg, Scaffold])
def test_a_hundred_clients_take_no_more_memory_than_ten(kind):
    few, many = peak(kind, 10), peak(kind, 100)
    assert few > 2  # the sum alone takes twice the model
    assert many == pytest.approx(few, rel=0.1)
