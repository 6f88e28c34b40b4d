"""Centralised training: equal to a plain PyTorch loop, whatever the keys of clients are."""

import numpy as np
import pytest
import torch
from in_process import differ, federate, settings
from torch import nn

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext

CENTRALISED = [name for name in METHODS if name.startswith("centralised")]
RUN = {"num_rounds": 2, "weight_decay": 1e-3, "lr": 0.01, "local_epochs": "auto"}


def plain_loop(run, keep_momentum=True):
    """Train with torch.optim.SGD, one optimiser for all epochs, on the batches of the run.

    It uses the app's fused kernel: rounding differences of another one grow within a few epochs.
    """
    config = parse_config(run)
    process = ProcessContext(config)
    model = process.new_model().train()
    trained = [p for p in model.parameters() if p.requires_grad]
    for epoch in range(1, config.num_rounds + 1):
        if epoch == 1 or not keep_momentum:
            optimiser = torch.optim.SGD(
                trained, 1.0, config.momentum, weight_decay=config.weight_decay, fused=True
            )
        optimiser.param_groups[0]["lr"] = config.lr_at(epoch)
        batches = process.client(0).data.training(epoch)
        for _ in range(config.local_epochs):
            for images, labels in batches():
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(images)[1], labels).backward()
                optimiser.step()
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def largest_difference(ours, plain):
    return max(np.abs(array - plain[name]).max() for name, array in ours.items())


@pytest.mark.parametrize("method", CENTRALISED)
def test_a_run_is_a_plain_loop_whose_optimiser_lasts(method):
    run = settings(method=method, **RUN)
    assert largest_difference(federate(run)[0], plain_loop(run)) < 1e-6


@pytest.mark.parametrize("keys", [{"lr_schedule": "cosine", "local_epochs": 2}, {"momentum": 0.0}])
def test_a_schedule_longer_rounds_and_no_momentum_are_those_of_a_plain_loop(keys):
    run = settings(method="centralised", **{**RUN, **keys})
    assert largest_difference(federate(run)[0], plain_loop(run)) < 1e-6


def test_one_client_of_fedavg_is_a_loop_with_a_new_optimiser_in_every_epoch():
    run = settings(method="fedavg", partition="iid", num_clients=1, **RUN)
    ours = federate(run)[0]
    assert largest_difference(ours, plain_loop(run, keep_momentum=False)) < 1e-6
    assert largest_difference(ours, plain_loop(run)) > 1e-4


@pytest.mark.parametrize("method", CENTRALISED)
def test_keys_of_clients_and_partition_do_not_apply(method):
    changes = {"partition": "lda", "num_clients": 100, "participation": 0.1, "stochastic_every": 10}
    config = parse_config(
        settings(method=method, **changes, local_epochs="auto", dataset="cifar10")
    )
    assert (config.num_clients, config.participation, config.stochastic_every) == (1, 1.0, 0)
    assert (config.partition, config.pool_data, config.local_epochs) == ("iid", False, 1)
    assert parse_config(config.flat()) == config
    assert parse_config(settings(method=method, local_epochs=5)).local_epochs == 5


def test_the_one_client_has_every_image_once():
    process = ProcessContext(parse_config(settings(method="centralised", partition="shards")))
    assert [sorted(part) for part in process.data.partition.train] == [list(range(1438))]
    assert [sorted(part) for part in process.data.partition.test] == [list(range(359))]


def test_a_regulariser_pulls_to_the_model_of_the_epochs_start():
    run = {"method": "centralised", "num_rounds": 2, "lr": 0.05}
    plain = federate(settings(**run))[0]
    assert differ(plain, federate(settings(**run, regulariser="prox", beta=0.5))[0])


def test_data_of_clients_that_stay_on_their_hosts_are_refused():
    with pytest.raises(UserError, match="every client has a folder of its own"):
        parse_config(
            settings(method="centralised", partition="own", dataset="images", classes="cat dog")
        )
