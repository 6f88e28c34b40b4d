"""FEDAPP_HOSTS lets nodes whose node-config cannot be given host any client."""

import pytest

from fedapp.core.errors import UserError
from fedapp.runtime.node.identity import hosted_clients


def clients_of(partition: str, **node: str) -> list[int]:
    config = {"partition-id": 1, "num-partitions": 3, **node}
    return hosted_clients(config, partition, 6)


def test_the_variable_is_the_default_of_nodes_with_all_data(monkeypatch):
    monkeypatch.delenv("FEDAPP_HOSTS", raising=False)
    assert clients_of("shards") == [1, 4]
    monkeypatch.setenv("FEDAPP_HOSTS", "any")
    assert clients_of("shards") == [0, 1, 2, 3, 4, 5]
    assert clients_of("shards", hosts="own") == [1, 4]
    assert clients_of("own") == [1, 4]


def test_another_value_is_named_with_its_source(monkeypatch):
    monkeypatch.setenv("FEDAPP_HOSTS", "all")
    with pytest.raises(UserError, match=r"variable FEDAPP_HOSTS is 'all' but must be own or any"):
        clients_of("shards")
    with pytest.raises(UserError, match="node-config key 'hosts' is 'some' but must be own or any"):
        clients_of("shards", hosts="some")
