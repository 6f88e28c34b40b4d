"""Secure aggregation on four real SuperNodes, all there or one killed while it trains."""

import signal

import pytest
from in_process import assert_same, break_client, federate, settings
from safetensors.numpy import load_file

from deployment.federation import WARM

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KEYS = {
    "num_rounds": 1, "num_clients": 4, "shards": 5, "participation": 1.0, "local_epochs": 8,
    "tolerate_failures": True,
}  # fmt: skip
LAST = 3


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("method", ["fedavg", "feddr+"])
def test_the_sum_is_that_of_the_nodes_that_stayed(new_federation, monkeypatch, method, lost):
    made = new_federation(4)
    made.start_superlink()
    made.register(*range(4))
    for number in range(4):
        made.start_node(number, 4, WARM)
    run = made.start_run("masked", method=method, secure_aggregation="pairwise", **KEYS)
    if lost:
        made.wait_for_training(LAST)
        made.nodes[LAST].signal(signal.SIGKILL)
    run.process.wait(600)
    assert made.summary("masked")["status"] == "completed", run.text()
    (row,) = made.rows("masked")
    assert (row["clients"], row["failed"]) == ((3, 1) if lost else (4, 0))
    if lost:
        break_client(monkeypatch, {LAST}, RuntimeError("lost"))
    plain = federate(settings(method=method, batch_size="auto", **KEYS), nodes=4)[0]
    found = load_file(made.directory("masked") / "model.safetensors")
    assert_same(plain, {name: found[name] for name in plain})
