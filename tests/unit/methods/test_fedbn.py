"""FedBN: what its clients send and keep, and that one client alone trains as FedAvg."""

import pytest
from in_process import assert_same, differ, federate, settings
from torch import nn

from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")


@pytest.mark.parametrize("bn", ["batch", "running", "group"])
def test_it_sends_all_but_the_normalisation_layers(bn):
    process = ProcessContext(parse_config(settings(method="fedbn", bn=bn)))
    kept = {
        f"{layer}.{name}"
        for layer, module in process.model.named_modules()
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm)
        for name, tensor in module.state_dict().items()
        if tensor.is_floating_point()
    }
    tensors = process.model.state_dict()
    assert {"head.weight", "extractor.conv1.weight"} <= process.slot.shared.keys()
    assert kept == process.slot.private.keys()
    assert not kept & process.slot.shared.keys()
    everything = {name for name, tensor in tensors.items() if tensor.is_floating_point()}
    assert kept | process.slot.shared.keys() == everything


@pytest.mark.parametrize("bn", ["batch", "running"])
def test_with_one_client_it_is_fedavg_bit_for_bit(bn, tmp_path):
    run = {"model": "resnet10", "bn": bn, "lr": 0.05, "num_clients": 1, "participation": 1.0}
    run |= {"partition": "iid", "state_dir": str(tmp_path)}
    whole = federate(settings(method="fedavg", **run))[0]
    sent = federate(settings(method="fedbn", keep_state=True, **run), state_key="r")[0]
    digits = ProcessContext(parse_config(settings(method="fedbn"))).data.dataset
    header = {"method": "fedbn", "model": "resnet10", "seed": "0"}
    header["classes"] = f"10 ({digits.classes_hash()})"
    kept = ClientState(tmp_path, "r", 0, header).load(99)
    assert_same(whole, {name: {**sent, **kept}[name] for name in whole})


def test_clients_keep_different_layers_and_the_sent_model_differs_from_fedavgs():
    run = {"model": "resnet10", "num_clients": 5, "participation": 1.0, "lr": 0.05}
    personal, strategy, _ = federate(settings(method="fedbn", **run))
    shared = federate(settings(method="fedavg", **run))[0]
    assert differ(personal, {name: shared[name] for name in personal})
    assert strategy.report.client_accuracy["client-count"] == 5


def test_a_model_without_normalisation_is_refused():
    with pytest.raises(UserError, match=r"'fedbn' .*'cnn'"):
        parse_config(settings(method="fedbn", model="cnn"))
