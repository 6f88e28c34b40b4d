"""Nodes of Flower's Simulation Runtime host any client, as those of `fedapp run` do."""

import sys
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedapp.client_app import app
from fedapp.runtime import client


@pytest.mark.parametrize(
    ("in_ray", "partition", "hosts"),
    [
        (True, "shards", "any"),
        (True, "own", None),
        (False, "shards", None),
        (None, "shards", None),
    ],
)
def test_only_a_simulated_node_with_all_data_hosts_any_client(
    monkeypatch, in_ray, partition, hosts
):
    monkeypatch.setattr(client, "app", lambda message, context: dict(context.node_config))
    if in_ray is None:
        monkeypatch.delitem(sys.modules, "ray", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: in_ray))
    node = {"partition-id": 1, "num-partitions": 3}
    context = Context(1, 1, dict(node), RecordDict(), {"partition": partition})
    message = SimpleNamespace(metadata=SimpleNamespace(message_type="query"))
    assert app(message, context) == node | ({"hosts": hosts} if hosts else {})
