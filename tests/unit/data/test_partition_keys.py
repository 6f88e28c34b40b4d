"""Keys of the partition that reach it from a configuration, at other values than their defaults."""

import numpy as np
import pytest
from in_process import settings

from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext


def process_of(**keys):
    return ProcessContext(parse_config(settings(method="fedavg", num_clients=10, **keys)))


def test_sizes_of_an_unbalanced_partition_spread_by_the_sigma_of_the_key():
    def spread(sigma):
        process = process_of(partition="unbalanced", unbalanced_sigma=sigma)
        sizes = np.array([len(part) for part in process.data.partition.train])
        return np.ptp(sizes), np.log(sizes).std()

    assert spread(0.0)[0] <= 1
    assert spread(0.2)[1] < 0.4 < spread(1.5)[1]


@pytest.mark.parametrize("first", [1, 8])
def test_clients_lack_no_class_before_the_first_round_of_the_key(first):
    process = process_of(shards=4, stochastic_every=2, stochastic_from=first)
    lacked = [process.data.dropped_class(3, server_round) for server_round in range(1, 13)]
    assert [label is not None for label in lacked] == [r >= first for r in range(1, 13)]
