"""Stochastic clients: which class is gone is a function of seed, client and block of rounds."""

import numpy as np
import torch

from fedapp.config.resolve import parse_config
from fedapp.data.batches.in_memory import ClientBatches
from fedapp.data.partition.stochastic import dropped_class
from fedapp.runtime.process import ProcessContext

LABELS = np.repeat([2, 3, 5, 7], 10)


def test_a_block_lacks_one_observed_class_and_the_next_may_lack_another():
    dropped = [dropped_class(LABELS, 0, 4, r, 10) for r in range(1, 301)]
    blocks = [set(dropped[start : start + 10]) for start in range(0, 300, 10)]
    assert all(len(block) == 1 for block in blocks)
    assert set(dropped) == {2, 3, 5, 7}
    assert dropped == [dropped_class(LABELS, 0, 4, r, 10) for r in range(1, 301)]
    assert dropped != [dropped_class(LABELS, 0, 5, r, 10) for r in range(1, 301)]
    assert dropped != [dropped_class(LABELS, 1, 4, r, 10) for r in range(1, 301)]


def test_nothing_is_dropped_when_off_or_too_early_or_for_a_single_class():
    assert dropped_class(LABELS, 0, 4, 5, 0) is None
    assert dropped_class(LABELS, 0, 4, 10, 10, first_round=11) is None
    assert dropped_class(LABELS, 0, 4, 11, 10, first_round=11) is not None
    assert dropped_class(LABELS[:10], 0, 4, 5, 10) is None


def test_an_epoch_of_some_members_serves_these_once():
    images = torch.zeros(9, 8, 8, 1, dtype=torch.uint8)
    batches = ClientBatches(images, torch.arange(9), (0.5,), (0.5,), 4, "crop flip")
    members = torch.tensor([1, 4, 5, 6, 8])
    epoch = list(batches.epoch(torch.Generator().manual_seed(0), members))
    assert [len(labels) for _, labels in epoch] == [5]  # 4 and a last one of 1, merged
    assert sorted(torch.cat([labels for _, labels in epoch]).tolist()) == members.tolist()


def test_a_node_trains_stochastic_clients_without_the_dropped_class():
    config = parse_config(
        {"method": "fedavg", "stochastic-every": 10, "num-clients": 10, "shards": 4}
    )
    node = ProcessContext(config)
    seen = {}
    for server_round in (1, 10, 11):
        client = node.client(3)
        batches = client.data.training(server_round)()
        seen[server_round] = set(torch.cat([labels for _, labels in batches]).tolist())
    full = set(node.data.dataset.train_labels[node.data.partition.train[3]].tolist())
    assert seen[1] == seen[10] == full - {node.data.dropped_class(3, 1)}
    assert seen[11] == full - {node.data.dropped_class(3, 11)}
    # Aggregation keeps the weight of the whole client.
    assert client.data.num_examples == len(node.data.partition.train[3])
