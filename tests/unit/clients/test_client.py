"""The NumPyClients, also behind Flower's own `to_client()`."""

import numpy as np
import pytest
import torch
from flwr.client import Client, NumPyClient
from flwr.common import EvaluateIns, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from in_process import settings

from clients.training.arrays import squared_distance, to_arrays
from clients.training.local_training import LossDiverged, TrainingResult
from fedapp.config.resolve import parse_config
from fedapp.methods.table import METHODS
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server.strategy import build_strategy
from strategies.rounds.federation import Federation


@pytest.mark.parametrize("method", METHODS)
def test_to_client_gives_what_the_numpy_client_gives(method):
    node_config = parse_config(settings(method=method))
    node = ProcessContext(node_config)
    everyone = range(node_config.num_clients)
    federation = Federation(dict.fromkeys(everyone, 100), dict.fromkeys(everyone, 1))
    number = min(3, node_config.num_clients - 1)
    sent = build_strategy(node_config, node, federation).extras([number])  # beside the model
    numpy_client = node.client(number, extras=sent)
    assert isinstance(numpy_client, NumPyClient)
    received = numpy_client.get_parameters({})
    config = {"server_round": 1, "lr": 0.05}
    arrays, examples, metrics = numpy_client.fit(received, config)
    client = node.client(number, extras=sent).to_client()
    assert isinstance(client, Client)
    reply = client.fit(FitIns(ndarrays_to_parameters(received), config))
    assert reply.num_examples == examples == len(node.data.partition.train[number])
    for own, other in zip(arrays, parameters_to_ndarrays(reply.parameters), strict=True):
        np.testing.assert_array_equal(own, other)
    assert reply.metrics["loss"] == metrics["loss"]
    client = node.client(number, extras=sent).to_client()
    judged = client.evaluate(EvaluateIns(ndarrays_to_parameters(arrays), {}))
    loss, count, more = node.client(number, extras=sent).evaluate(arrays, {})
    assert (judged.loss, judged.num_examples, judged.metrics) == (loss, count, more)
    assert count == len(node.data.partition.test[number])


@pytest.mark.parametrize("method", ["fedavg", "apfl"])
@pytest.mark.parametrize("first", ["fit", "evaluate"])
@pytest.mark.parametrize("second", ["fit", "evaluate"])
def test_an_object_serves_one_message(method, first, second):
    """A personal model, a share or a cached state would be that of the first."""
    client = ProcessContext(parse_config(settings(method=method, num_clients=40))).client(0)
    received, config = client.get_parameters({}), {"server_round": 1, "lr": 0.05}
    getattr(client, first)(received, config)
    with pytest.raises(RuntimeError, match="a client object serves one message"):
        getattr(client, second)(received, config)


def test_the_teacher_is_the_received_model_and_stays_it():
    node = ProcessContext(parse_config(settings(method="feddr+")))
    client = node.client(0)
    received = [array + 0.01 for array in client.get_parameters({})]
    client.fit(received, {"server_round": 1, "lr": 0.1})
    teacher = node.slot.teacher
    kept = [tensor for name, tensor in teacher.state_dict().items() if name in client.shared]
    for tensor, array in zip(kept, received, strict=True):
        assert torch.equal(tensor, torch.from_numpy(array))
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_training_needs_no_global_random_numbers():
    node = ProcessContext(parse_config(settings(method="fedntd")))
    received = node.client(0).get_parameters({})
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one = node.client(0).fit(received, {"server_round": 1, "lr": 0.1})[0]
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(2)
    other = node.client(0).fit(received, {"server_round": 1, "lr": 0.1})[0]
    for own, again in zip(one, other, strict=True):
        np.testing.assert_array_equal(own, again)


def test_a_wrong_number_of_arrays_is_an_error():
    client = ProcessContext(parse_config(settings())).client(0)
    with pytest.raises(ValueError, match="received 1 arrays instead of 6"):
        client.set_parameters([np.zeros(3)])


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (1 << 15,), (3, 40_000), (512, 4096)])
def test_squared_distances_are_those_of_one_expression_in_float64(shape):
    random = np.random.default_rng(0)
    one, other = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    expected = np.square(one - other, dtype=np.float64).sum()
    assert squared_distance(one, other) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -3e38])
@pytest.mark.parametrize("part", ["extractor.1.weight", "extractor.1.running_mean", "huge"])
def test_a_trained_model_that_is_not_finite_is_a_divergence(part, value, monkeypatch):
    """A finite model is sent, however large its distance is; the server judges it."""
    node = ProcessContext(parse_config(settings(method="fedavg", model="mobilenet", bn="running")))
    client, result = node.client(0), TrainingResult(1.0, 2, 20, 0.1)
    received = dict(zip(client.shared, client.get_parameters({}), strict=True))
    name = "extractor.1.weight" if part == "huge" else part
    if part == "huge":
        value, received[name] = -3e38, np.full_like(received[name], 3e38)

    def run(server_round, lr):
        client.shared[name].data[0] = value
        return result

    monkeypatch.setattr(client, "run", run)
    if np.isfinite(value):
        assert client.work(received, 1, 0.1).training is result
        return
    with pytest.raises(LossDiverged, match="the model has non-finite values after 2 steps"):
        client.work(received, 1, 0.1)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_arrays_are_copies_in_c_order_of_tensors_in_any_layout(layout):
    weight = torch.randn(5, 4, 3, 3).to(memory_format=layout)
    arrays = to_arrays({"weight": torch.nn.Parameter(weight.clone()), "steps": torch.tensor(2)})
    np.testing.assert_array_equal(arrays["weight"], weight.numpy())
    assert arrays["weight"].flags.c_contiguous
    assert arrays["steps"].shape == ()
    copies = to_arrays({"weight": weight})
    copies["weight"][:] = 0
    assert weight.any()
