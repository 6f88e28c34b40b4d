"""The same code, proved: real SuperNodes give the model that plain calls give, bit for bit.

FedDOR trains on two warm workers; SCAFFOLD, whose clients keep state and here round their updates,
on a node that starts a process for each message and one with a warm worker. What is compared is the
last checkpoint: the shared arrays and all that the strategy remembers; after SCAFFOLD also the head
that is calibrated with what the nodes tell of their features. FedDr+ trains in
test_secure_nodes.py.
"""

from pathlib import Path

import pytest
from in_process import assert_same, federate, settings

from fedapp.config.resolve import parse_config
from fedapp.results import checkpoint
from fedapp.trained_models.calibrate import Retraining, calibrate

METHODS: dict[str, dict] = {
    "feddor": {"model_group": "tiny"},
    "scaffold": {"class_statistics": True, "upload_bits": 4},
}
ROUNDS = {"num_rounds": 2, "num_clients": 2, "shards": 5, "local_epochs": 1, "participation": 1.0}


@pytest.mark.parametrize("method", METHODS)
def test_real_nodes_and_plain_calls_agree(federation, method):
    if method == "scaffold":
        federation.restart_node(0)
    keys = {"method": method, **ROUNDS, **METHODS[method]}
    log = federation.run(f"same-{method}", **keys, checkpoint_every=1)
    assert federation.status() == "finished:completed", log
    values = settings(batch_size="auto", **keys)
    arrays, strategy, _ = federate(values, nodes=1)
    directory = federation.directory(f"same-{method}")
    saved = checkpoint.load(directory, parse_config(values).fingerprint())
    assert saved.server_round == 2
    expected = strategy.save()
    assert arrays or expected
    assert_same(arrays, {name: saved.arrays[name] for name in arrays})
    assert_same(expected, {name: saved.strategy[name] for name in expected})
    assert [row["clients"] for row in federation.rows(f"same-{method}")] == [2, 2]
    assert "worker did not answer" not in federation.nodes[1].text()
    if "class_statistics" in keys:
        by_nodes = calibrated(directory)
        (directory / "class_statistics.safetensors").unlink()
        assert calibrated(directory) == by_nodes


def calibrated(directory: Path) -> bytes:
    """Calibrate the run's head, and return the file of the model."""
    calibrate(directory, {}, Retraining(features=20, epochs=1))
    return (directory / "calibrated.safetensors").read_bytes()
