"""Stochastic clients: which class is gone is a function of seed, client and block of rounds."""

import numpy as np
import torch

from clients.training.arrays import to_arrays
from fedapp.analysis.measures.base import Measure
from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.rounds import RoundModels, Start, measure_round
from fedapp.config.resolve import parse_config
from fedapp.data.batches.in_memory import ClientBatches
from fedapp.data.partition.stochastic import dropped_class
from fedapp.runtime.process.context import ProcessContext

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
        client = node.client(3, server_round=server_round)
        batches = client.data.training(server_round)()
        seen[server_round] = set(torch.cat([labels for _, labels in batches]).tolist())
        counts = client.objective.class_counts
        assert set(counts.nonzero().flatten().tolist()) == seen[server_round]
        assert counts.equal(client.data.class_counts)
    full = set(node.data.dataset.train_labels[node.data.partition.train[3]].tolist())
    assert seen[1] == seen[10] == full - {node.data.dropped_class(3, 1)}
    assert seen[11] == full - {node.data.dropped_class(3, 11)}
    # Aggregation keeps the weight of the whole client.
    assert client.data.num_examples == len(node.data.partition.train[3])


def stochastic(method, **changes):
    keys = {"method": method, "stochastic-every": 10, "num-clients": 10, "shards": 4, **changes}
    process = ProcessContext(parse_config(keys))
    observed = set(process.data.dataset.train_labels[process.data.partition.train[3]].tolist())
    return process, observed - {process.data.dropped_class(3, 1)}


def test_a_stochastic_client_sends_no_prototype_of_the_dropped_class():
    process, present = stochastic("fedproto", **{"feature-dim": 16})
    client = process.client(3)
    client.server_round = 1
    client.prepare(1)
    uploads = client.collect()
    assert set(uploads["proto-classes"].tolist()) == present
    assert len(uploads["proto"]) == len(present) == 3


def test_a_measure_does_not_count_the_dropped_class_as_observed(monkeypatch):
    seen = []

    class Spy(Measure):
        def of_client(self, local):
            seen.append((local.erased, set(np.flatnonzero(local.observed).tolist())))
            return {}

    monkeypatch.setitem(MEASURES, "spy", Spy)
    process, present = stochastic("fedavg")
    start = Start(to_arrays(process.slot.shared))
    measure_round(process, RoundModels(1, start, None, (3,), 0.05), ["spy"])
    assert seen == [(process.data.dropped_class(3, 1), present)]
