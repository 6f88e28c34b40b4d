"""Secure aggregation on real SuperNodes: the bits of plain calls without it."""

import shutil

from in_process import assert_same, federate, settings

from deployment.federation import WARM
from fedapp.config.resolve import parse_config
from fedapp.results import checkpoint

KEYS = {
    "method": "feddr+", "num_rounds": 1, "num_clients": 3, "partition": "iid", "shards": 5,
    "participation": 1.0, "local_epochs": 1,
}  # fmt: skip


def test_three_nodes_hide_their_updates_and_change_no_bit(federation, tmp_path):
    """One node starts a process for each message, so its secrets lie in Flower's context.

    They sign their keys with the keys by which the SuperLink knows them.
    """
    made = federation
    made.register(2)
    for number in range(3):
        shutil.copy(made.certificates / f"node-{number}.pub", tmp_path)
    for number, worker in enumerate(("", WARM, WARM)):
        key = made.certificates / f"node-{number}"
        made.restart_node(number, 3, f"{worker} secure-key='{key}' secure-peers='{tmp_path}'")
    hidden = {**KEYS, "secure_aggregation": "pairwise"}
    log = made.run("secure", **hidden, checkpoint_every=1)
    assert made.status() == "finished:completed", log
    run = parse_config(settings(batch_size="auto", **hidden))
    saved = checkpoint.load(made.directory("secure"), run.fingerprint())
    arrays, strategy, _ = federate(settings(batch_size="auto", **KEYS), nodes=1)
    assert_same(arrays, {name: saved.arrays[name] for name in arrays})
    expected = strategy.save()
    assert_same(expected, {name: saved.strategy[name] for name in expected})
    assert [row["clients"] for row in made.rows("secure")] == [3]
    assert made.rows("secure")[0]["bytes_up"] > 2 * sum(a.nbytes for a in arrays.values()) * 3
