"""A process keeps the images of the clients that it used last, not those of all clients."""

import torch
from in_process import settings

from fedapp.config.resolve import parse_config
from fedapp.runtime.process import federated_data
from fedapp.runtime.process.context import ProcessContext


def batches_of(data, client):
    return [images for images, _ in data.client(client).training(1)()]


def test_the_clients_used_last_are_kept_and_others_are_made_again(monkeypatch):
    data = ProcessContext(parse_config(settings(augmentation="crop", num_clients=10))).data
    first = {client: batches_of(data, client) for client in range(10)}
    one = data._batches[0].nbytes
    assert one > 0
    assert len(data._batches) == 10
    monkeypatch.setattr(federated_data, "KEPT_BYTES", int(3.5 * one))
    for client in (4, 7, 4, 2):
        again = batches_of(data, client)
        assert all(map(torch.equal, first[client], again))
    assert list(data._batches)[-2:] == [4, 2]
    assert sum(batches.nbytes for batches in data._batches.values()) <= 3.5 * one


def test_a_client_with_more_images_than_that_is_kept_alone(monkeypatch):
    monkeypatch.setattr(federated_data, "KEPT_BYTES", 1)
    data = ProcessContext(parse_config(settings(num_clients=10))).data
    for client in (1, 2):
        assert batches_of(data, client)
        assert list(data._batches) == [client]
