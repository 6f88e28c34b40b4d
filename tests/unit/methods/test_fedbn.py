"""FedBN: what its clients send and keep, and that one client alone trains as FedAvg."""

import pytest
from in_process import assert_same, differ, federate, settings

from clients.state.store import ClientState
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.models.backbones import BACKBONES, BackboneInfo
from fedapp.runtime.process.context import ProcessContext

DIGITS = load_dataset("digits")
HEADER = {"method": "fedbn", "model": "resnet10", "seed": "0"}
HEADER["classes"] = f"10 ({DIGITS.classes_hash()})"

pytestmark = pytest.mark.usefixtures("few_images")


LAYERS = {  # of resnet10
    "bn1", *(f"layer{stage}.0.bn{i}" for stage in (1, 2, 3, 4) for i in (1, 2)),
    *(f"layer{stage}.0.downsample.1" for stage in (2, 3, 4)),
}  # fmt: skip
AFFINE, STATISTICS = ("weight", "bias"), ("running_mean", "running_var")


@pytest.mark.parametrize(
    ("bn", "tensors"), [("batch", AFFINE), ("running", AFFINE + STATISTICS), ("group", AFFINE)]
)
def test_it_sends_all_but_the_normalisation_layers(bn, tensors):
    process = ProcessContext(parse_config(settings(method="fedbn", bn=bn)))
    kept = {f"extractor.{layer}.{tensor}" for layer in LAYERS for tensor in tensors}
    assert process.slot.unsent.keys() == kept
    state = process.model.state_dict()
    rest = {name for name, tensor in state.items() if tensor.is_floating_point()} - kept
    assert process.slot.shared.keys() == rest
    assert {"head.weight", "extractor.conv1.weight"} <= rest


@pytest.mark.parametrize("bn", ["batch", "running"])
def test_with_one_client_it_is_fedavg_bit_for_bit(bn, tmp_path):
    run = {"model": "resnet10", "bn": bn, "lr": 0.05, "num_clients": 1, "participation": 1.0}
    run |= {"partition": "iid", "state_dir": str(tmp_path)}
    whole = federate(settings(method="fedavg", **run))[0]
    sent = federate(settings(method="fedbn", keep_state=True, **run), state_key="r")[0]
    kept = ClientState(tmp_path, "r", 0, HEADER).load(99)
    assert_same(whole, {name: {**sent, **kept}[name] for name in whole})


def test_clients_keep_different_layers_and_the_sent_model_differs_from_fedavgs(tmp_path):
    run = {"model": "resnet10", "num_clients": 5, "participation": 1.0, "lr": 0.05}
    run |= {"state_dir": str(tmp_path)}
    personal = federate(settings(method="fedbn", keep_state=True, **run), state_key="r")[0]
    one, other = (ClientState(tmp_path, "r", client, HEADER).load(99) for client in (0, 1))
    assert differ(one, other)
    shared = federate(settings(method="fedavg", **run))[0]
    assert differ(personal, {name: shared[name] for name in personal})


def test_a_backbone_of_ones_own_with_batchnorm_is_allowed(monkeypatch):
    build = BACKBONES["resnet10"].build
    monkeypatch.setitem(BACKBONES, "mine", BackboneInfo(build, 512, has_batch_norm=True))
    process = ProcessContext(parse_config(settings(method="fedbn", model="mine")))
    assert "extractor.bn1.weight" in process.slot.unsent


def test_a_model_without_normalisation_is_refused():
    with pytest.raises(UserError, match=r"'fedbn' needs normalisation layers.*resnet10.*'cnn'"):
        parse_config(settings(method="fedbn", model="cnn"))
