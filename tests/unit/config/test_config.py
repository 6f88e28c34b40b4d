"""RunConfig: the same keys as pyproject.toml, and one clear sentence for every mistake."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedapp.config.extensions import foreign_keys
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.methods.table import METHODS

ROOT = Path(__file__).parents[3]
DEFAULTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
FIXED_SURFACE = [
    "method",
    "dataset",
    "data-dir",
    "model",
    "partition",
    "shards",
    "alpha",
    "num-clients",
    "participation",
    "num-rounds",
    "local-epochs",
    "batch-size",
    "lr",
    "lr-schedule",
    "momentum",
    "weight-decay",
    "beta",
    "tau",
    "mu",
    "regulariser",
    "weights",
    "seed",
    "device",
    "precision",
    "eval-every",
    "checkpoint-every",
    "resume",
    "output-dir",
    "run-name",
    "analyses",
    "tracker",
    "round-timeout",
    "min-replies",
    "tolerate-failures",
    "model-group",
    "feature-dim",
]


def test_pyproject_lists_every_key_with_the_same_default():
    assert RunConfig().flat() == DEFAULTS
    assert list(RunConfig().flat()) == list(DEFAULTS)
    assert set(FIXED_SURFACE) <= set(DEFAULTS)


def test_auto_takes_the_method_and_the_papers_values():
    plus = parse_config(DEFAULTS)
    assert (plus.regulariser, plus.beta, plus.model) == ("fd", 0.9, "cnn")
    vgg = parse_config({**DEFAULTS, "dataset": "cifar10", "method": "feddr+"})
    assert (vgg.model, vgg.lr, vgg.local_epochs, vgg.lr_schedule) == ("vgg11", 0.35, 10, "step")
    ntd = parse_config({**DEFAULTS, "dataset": "cifar10", "model": "cnn", "method": "fedntd"})
    assert (ntd.lr, ntd.local_epochs, ntd.lr_schedule) == (0.01, 5, "exponential")
    assert (ntd.beta, ntd.tau, ntd.augmentation) == (1.0, 1.0, "crop flip cutout")
    left = {key for key, value in ntd.flat().items() if value == "auto"}
    criterion = "feddor-server-epochs"  # stays "auto" in a run
    assert left == {"device", "feature-dim", "eval-rule", "finetune-lr", criterion}


def test_a_resolved_configuration_resolves_to_itself():
    resolved = parse_config(DEFAULTS)
    assert parse_config(resolved.flat()) == resolved


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methd": "fedavg"}, "'methd' does not exist; did you mean 'method'"),
        ({"method": "fedsuper"}, "'fedsuper' does not exist"),
        ({"method": "fedsuper", "fedsuper-mu": 1.0}, "method 'fedsuper' does not exist"),
        ({"dataset": "imagenet"}, "dataset 'imagenet' does not exist; did you mean 'imagenet100'"),
        ({"model": "gpt"}, "model 'gpt' does not exist; there is cnn, vgg11"),
        ({"partition": "random"}, "partition 'random' does not exist"),
        ({"num-rounds": 2.5}, "'num-rounds' is 2.5"),
        ({"num-rounds": "many"}, "'num-rounds' is 'many'"),
        ({"num-rounds": 0}, "'num-rounds' is 0 but must be greater than or equal to 1"),
        ({"participation": 1.5}, "'participation' is 1.5 but must be less than or equal to 1"),
        ({"participation": 0.0}, "'participation' is 0.0 but must be greater than 0"),
        ({"lr": -1.0}, "'lr' is -1.0 but must be greater than 0 or 'auto'"),
        ({"lr": "fast"}, "'lr' is 'fast' but must be"),
        ({"data-dir": "a\udcff"}, "'data-dir' is 'a\\udcff' but must be text in UTF-8"),
        ({"run-name": "a\udcff"}, "'run-name' is 'a\\udcff' but must be text in UTF-8"),
        ({"clip-norm": float("nan")}, "'clip-norm' is nan but must be a finite number"),
        ({"round-timeout": float("inf")}, "'round-timeout' is inf but must be a finite number"),
        ({"proto-server-lr": float("inf")}, "'proto-server-lr' is inf but must be a finite number"),
        ({"lr": float("inf")}, "'lr' is inf but must be a finite number or 'auto'"),
        ({"unbalanced-sigma": 1000.0}, "'unbalanced-sigma' is 1000.0 but must be less than"),
        ({"alpha": 1e300}, "'alpha' is 1e+300 but must be less than or equal to"),
        ({"fedgen-server-lr": 1e38}, "'fedgen-server-lr' is 1e+38 but must be less than or equal"),
        ({"feddyn-alpha": 1e300}, "'feddyn-alpha' is 1e+300 but must be less than or equal to"),
        ({"fedetf-scale-init": 1e300}, "'fedetf-scale-init' is 1e+300 but must be less than"),
        ({"beta": 1e300}, "'beta' is 1e+300 but must be less than or equal to"),
        ({"threads": 10**12}, "'threads' is 1000000000000 but must be less than or equal to 1024"),
        ({"weights": "equal"}, "'weights' is 'equal' but must be 'size' or 'uniform'"),
        ({"seed": -3}, "'seed' is -3"),
        (
            {"partition-seed": -1},
            "'partition-seed' is -1 but must be greater than or equal to 0 or 'auto'",
        ),
        ({"tolerate-failures": "yes"}, "'tolerate-failures' is 'yes'"),
        (
            {"shards": 3, "num-clients": 7},
            "7 clients x 3 shards = 21 shards cannot be divided evenly among the 10 classes of "
            "digits; set num-clients to a multiple of 10, shards to a multiple of 10, or partition",
        ),
        (
            {"shards": 2, "num-clients": 4},
            "set num-clients to a multiple of 5, shards to a multiple of 5, or partition to",
        ),
        ({"participation": 0.1, "min-replies": 3}, "min-replies is 3 but only 2 clients"),
        (
            {"num-clients": 100, "participation": 0.07, "min-replies": 8},  # 7.000000000000001
            "min-replies is 8 but only 7 clients",
        ),
        ({"beta": 1.5}, "so it must be between 0 and 1"),
        ({"regulariser": "fp"}, "regulariser 'fp' does not exist"),
        ({"method": "fedntd", "regulariser": "fd"}, "already has the regulariser 'ntd'"),
        ({"method": "fedkd", "regulariser": "kd"}, "a loss of its own, which takes no regulariser"),
        ({"method": "fml", "regulariser": "prox"}, "a loss of its own, which takes no regulariser"),
        ({"augmentation": "crop rotate"}, "unknown augmentation 'rotate'"),
        ({"augmentation": "nonecrop"}, "unknown augmentation 'nonecrop'"),
        ({"analyses": "magic"}, "analyses: measure 'magic' does not exist; there is forgetting"),
        ({"device": "tpu"}, "'device' is 'tpu'"),
        ({"device": "cuda:01"}, "'device' is 'cuda:01' but must be auto, cpu, cuda or cuda:N"),
        ({"device": "cuda:\u00b2"}, "'device' is 'cuda:\u00b2'"),
        ({"dataset": "imagenet100", "test-batch-size": 256}, "must be at most 128 with dataset"),
        ({"num-clients": 0, "lr": "x"}, "must be greater than or equal to 1 (number of clients"),
        ({"lr-schedule": "x"}, "'step', 'exponential' or 'cosine' ("),
        ({"model-group": "MHMG2"}, "one model for all"),
        ({"run-name": "../x"}, "plain folder name"),
    ],
)
def test_every_mistake_is_one_sentence(change, words):
    with pytest.raises(UserError) as caught:
        parse_config({**DEFAULTS, **change})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_may_stand_for_floats_but_not_the_reverse():
    assert parse_config({**DEFAULTS, "lr": 1, "alpha": 1}).lr == 1.0
    with pytest.raises(UserError, match="shards"):
        parse_config({**DEFAULTS, "shards": 2.0})


def test_learning_rate_schedules():
    step = parse_config({**DEFAULTS, "num-rounds": 320, "lr": 1.0, "lr-schedule": "step"})
    rates = {r: step.lr_at(r) for r in (1, 160, 161, 240, 241, 320)}
    assert rates == pytest.approx({1: 1, 160: 1, 161: 0.1, 240: 0.1, 241: 0.01, 320: 0.01})
    decay = step.model_copy(update={"lr_schedule": "exponential"})
    assert [decay.lr_at(r) for r in (1, 2, 101)] == pytest.approx([1, 0.99, 0.99**100])
    assert step.model_copy(update={"lr_schedule": "constant"}).lr_at(300) == 1.0


def test_the_cosine_schedule_is_torchs_over_the_rounds():
    config = parse_config({**DEFAULTS, "num-rounds": 50, "lr": 0.1, "lr-schedule": "cosine"})
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=50)
    for server_round in range(1, 51):
        assert config.lr_at(server_round) == pytest.approx(reference.get_last_lr()[0])
        optimiser.step()
        reference.step()
    assert reference.get_last_lr()[0] == pytest.approx(0)


def test_fingerprint_depends_on_the_training_and_not_on_the_machine():
    base = parse_config(DEFAULTS)
    elsewhere = parse_config({**DEFAULTS, "output-dir": "/tmp/x", "device": "cpu", "run-name": "a"})
    kept = parse_config({**DEFAULTS, "keep-state": True, "tracker": "mlflow", "threads": 2})
    other = parse_config({**DEFAULTS, "seed": 1})
    assert (
        kept.fingerprint() == base.fingerprint() == elsewhere.fingerprint() != other.fingerprint()
    )


def test_keys_of_packages_that_a_run_does_not_use_are_not_part_of_its_fingerprint(monkeypatch):
    """A node or a checkpoint without the package fits."""
    row = replace(METHODS["fedavg"], keys={"own-part": METHODS["fedalign"].keys["fedalign-mu"]})
    monkeypatch.setitem(METHODS, "of-a-package", row)
    assert foreign_keys("fedavg") == {"own-part"}
    assert foreign_keys("of-a-package") == set()
