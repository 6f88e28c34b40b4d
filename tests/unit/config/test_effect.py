"""Which keys a run does not read: notes name these keys and no others."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from clients.training.objective import REGULARISERS, Step
from fedapp.config.effect import WITHOUT_TEMPERATURE, without_effect
from fedapp.config.resolve import parse_config
from fedapp.data.datasets import DATASETS


def has_effect(key: str, keys: dict[str, Any]) -> bool:
    return not without_effect([key], parse_config({"shards": 10, **keys}))


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("beta", {"method": "dr-ft", "finetune-loss": "dr+"}),
        ("beta", {"method": "fedavg-ft", "finetune-loss": "base+fd"}),
        ("beta", {"method": "fedavg", "finetune-epochs": 1, "finetune-loss": "base+fd"}),
        ("beta", {"method": "fedavg", "regulariser": "prox"}),
        ("beta", {"method": "feddr+"}),
        ("beta", {"method": "fedntd"}),
        ("mu", {"method": "fedprox"}),
        ("tau", {"method": "fedntd"}),
        ("tau", {"method": "fedsol"}),
        ("tau", {"method": "spherefed-ce", "regulariser": "prox"}),
        ("tau", {"method": "fedavg", "regulariser": "kd"}),
        ("finetune-epochs", {"method": "fedavg", "finetune-epochs": 1}),
        ("ntd-tau-squared", {"method": "fedavg", "regulariser": "ntd"}),
        ("kd-ntd-lambda", {"method": "fedavg", "regulariser": "kd-ntd"}),
        ("spherefed-reduction", {"method": "spherefed-ft"}),
        ("weights", {"method": "scaffold"}),
        ("weights", {"method": "lg-fedavg"}),
        ("upload-bits", {"method": "scaffold"}),
        ("weights", {"aggregation": "median", "analyses": "local-training"}),
        ("pool-data", {"method": "fedavg", "partition": "dirichlet", "pool-data": False}),
        ("test-batch-size", {"method": "fedavg", "dataset": "cifar100"}),
        ("data-dir", {"dataset": "cifar10"}),
        ("data-dir", {"partition": "file", "partition-file": "split.json"}),
        ("data-dir", {"initial-model": "weights.pt"}),
        ("download", {"initial-model": "imagenet", "model": "resnet18-imagenet-stem"}),
        ("analyses", {"method": "fedavg", "analyses": "forgetting"}),
        ("download", {"dataset": "mnist"}),
        ("eval-rule", {"method": "fedproto"}),
        ("proto-server-lr", {"method": "fedgh"}),
        ("proto-server-lr", {"method": "feddor-no-oi"}),
        ("proto-batch-size", {"method": "fedgen"}),
        ("feddor-scale-init", {"method": "feddor-no-dor"}),
        ("feddor-generator", {"method": "feddor"}),
        ("feature-skew", {"method": "fedavg"}),
    ],
)
def test_a_key_that_a_run_reads_has_an_effect(key, keys):
    assert has_effect(key, keys)


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("beta", {"method": "feddr+", "regulariser": "none"}),
        ("beta", {"method": "fedprox"}),
        ("beta", {"method": "dr-ft"}),
        ("beta", {"method": "dr", "finetune-loss": "dr+"}),
        ("beta", {"method": "fedsol"}),
        ("mu", {"method": "fedprox", "regulariser": "none"}),
        ("tau", {"method": "fedntd", "regulariser": "none"}),
        ("tau", {"method": "fedavg", "regulariser": "prox"}),
        ("tau", {"method": "feddr+"}),
        ("ntd-tau-squared", {"method": "fedntd", "regulariser": "none"}),
        ("finetune-turns", {"method": "fedavg-ft"}),
        ("weights", {"method": "feddyn"}),
        ("weights", {"method": "fml"}),
        ("weights", {"method": "fedproto"}),
        ("upload-bits", {"method": "fedproto"}),
        ("upload-bits", {"method": "fednova"}),
        ("weights", {"method": "fedavg", "aggregation": "median"}),
        ("secure-threshold", {"method": "fedavg"}),
        ("test-batch-size", {"method": "fedavg", "dataset": "cifar100", "bn": "running"}),
        ("pool-data", {"method": "fedavg"}),
        ("data-dir", {"dataset": "digits"}),
        ("analyses", {"method": "fedper", "analyses": "forgetting consistency"}),
        ("download", {"dataset": "digits"}),
        ("download", {"initial-model": "weights.pt"}),
        ("eval-rule", {"method": "fedgh"}),
        ("proto-collect", {"method": "lg-fedavg"}),
        ("proto-server-lr", {"method": "fedproto"}),
        ("proto-server-lr", {"method": "fedgen"}),
        ("proto-batch-size", {"method": "feddor-no-dor"}),
        ("oi-simplex", {"method": "feddor-no-oi"}),
        ("feddor-scale-init", {"method": "feddor", "feddor-classifier": "linear"}),
        ("feddor-generator", {"method": "feddor-no-dor"}),
        ("feddor-generator", {"method": "feddor-no-oi"}),
        ("feddor-generator", {"method": "fedtgp"}),
        ("feature-skew", {"method": "centralised"}),
    ],
)
def test_a_key_that_a_run_does_not_read_has_no_effect(key, keys):
    assert not has_effect(key, keys)


def test_the_regularisers_without_a_temperature_are_those_whose_loss_ignores_it():
    def loss(name: str, tau: float) -> float:
        draw = torch.Generator().manual_seed(0)
        rows = [torch.randn(4, 4, generator=draw) for _ in range(6)]
        step = Step(
            torch.arange(4), rows[0], rows[1], rows[2], [rows[0]], [rows[1]],
            global_features=rows[3], global_logits=rows[4], previous_features=rows[5], tau=tau,
        )  # fmt: skip
        return float(REGULARISERS[name].function(step))

    ignoring = {name for name in REGULARISERS if loss(name, 1.0) == loss(name, 3.0)}
    assert {"none", *ignoring} == set(WITHOUT_TEMPERATURE)


def test_a_value_that_the_method_fixes_is_named():
    config = parse_config({"method": "centralised", "num-clients": 5})
    note = "num-clients has no effect with this method, data and partition"
    assert without_effect(["num-clients", "lr"], config) == note


def test_keys_of_photos_apply_to_each_data_set_of_photos(monkeypatch):
    mine = replace(DATASETS["imagenet100"], lists_classes=False)
    monkeypatch.setitem(DATASETS, "my-photos", mine)
    for dataset, effects in (
        ("imagenet100", (True, True)),
        ("my-photos", (True, False)),
        ("cifar10", (False, False)),
    ):
        keys = {"method": "fedavg", "dataset": dataset}
        found = (has_effect("decode-threads", keys), has_effect("class-list", keys))
        assert found == effects, dataset
