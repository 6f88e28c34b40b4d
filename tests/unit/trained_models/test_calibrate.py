"""Calibration of the head: exact statistics, draws, what it writes, and what it refuses."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import ROOT, settings
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

from clients.class_statistics import class_statistics
from fedapp.analysis.formulas.gaussians import ClassGaussians
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically
from fedapp.data.datasets import load_dataset
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.interface.runs import load_run
from fedapp.results.final_model import read_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.trained_models.calibrate import Retraining, calibrate


def trained(folder: Path, **changes) -> RunDirectory:
    """Train a run on the digits whose clients have two classes each."""
    values = settings(output_dir=str(folder), run_name="one", **changes)
    assert run_in_process(ROOT, values, Resources()) == 0
    return RunDirectory.load(folder / "one")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    folder = tmp_path_factory.mktemp("digits")
    keys = {"num_rounds": 25, "participation": 0.2, "batch_size": 10, "eval_every": 25}
    return trained(folder, method="fedavg", num_clients=20, **keys)


def test_merged_statistics_are_those_of_all_features_together():
    random = np.random.default_rng(0)
    features = torch.tensor(random.normal(size=(60, 5)) + 3, dtype=torch.float32)
    labels = torch.tensor(random.integers(0, 3, 60))
    merged = ClassGaussians(4, 5)
    for part in torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(13):
        merged.add(class_statistics(features[part], labels[part]))
    for label in range(3):
        own = features[labels == label].double().numpy()
        assert int(merged.counts[label]) == len(own)
        np.testing.assert_allclose(merged.means[label], own.mean(0), rtol=1e-12)
        expected = np.cov(own, rowvar=False)
        np.testing.assert_allclose(merged.covariance(label), expected, rtol=1e-9, atol=1e-12)
    assert int(merged.counts[3]) == 0


def test_draws_have_the_mean_and_covariance_of_their_class():
    generator = torch.Generator().manual_seed(1)
    root = torch.tensor([[1.0, 0.0, 0.0], [0.8, 0.5, 0.0], [-0.3, 0.2, 2.0]])
    real = torch.randn(400, 3, generator=generator) @ root.T + torch.tensor([1.0, -2.0, 5.0])
    merged = ClassGaussians(3, 3)
    merged.add(class_statistics(real, torch.full((400,), 2)))
    features, labels = merged.draw(40_000, generator)
    assert features.shape == (40_000, 3)
    assert labels.unique().tolist() == [2]  # no class without images
    np.testing.assert_allclose(features.mean(0), merged.means[2], atol=0.04)
    np.testing.assert_allclose(np.cov(features.T), merged.covariance(2), atol=0.08)


def test_a_class_of_one_image_or_of_equal_features_is_drawn_at_its_mean():
    merged = ClassGaussians(2, 4)
    merged.add(class_statistics(torch.ones(1, 4), torch.tensor([0])))
    merged.add(class_statistics(2 * torch.ones(3, 4), torch.tensor([1, 1, 1])))
    features, _ = merged.draw(5, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(features[:5], 1.0, atol=1e-4)
    np.testing.assert_allclose(features[5:], 2.0, atol=1e-4)


def test_it_lifts_a_model_of_clients_with_two_classes_and_changes_its_head_alone(run):
    found = calibrate(run.path, {}, Retraining(features=200, epochs=5))
    saved = json.loads((run.path / "calibration.json").read_text())
    assert saved == json.loads(json.dumps(found))
    assert found["before"]["accuracy"] == pytest.approx(run.summary()["accuracy_final"])
    assert found["after"]["accuracy"] > found["before"]["accuracy"] + 0.05
    before, after = load_file(run.model_path), load_file(run.path / "calibrated.safetensors")
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    again = calibrate(run.path, {}, Retraining(features=200, epochs=5))
    assert again == found


def test_images_are_classified_by_the_calibrated_head_if_asked(run, tmp_path):
    found = calibrate(run.path, {}, Retraining(features=200, epochs=5))
    digits = load_dataset("digits")
    for which, when in (("final", "before"), ("calibrated", "after")):
        guesses = load_run(run.path).classify(digits.test_images, which=which)
        right = [digits.classes[label] for label in digits.test_labels]
        share = np.mean([each.label == name for each, name in zip(guesses, right, strict=True)])
        assert share == pytest.approx(found[when]["accuracy"])
    Image.fromarray(digits.test_images[0, ..., 0]).save(tmp_path / "zero.png")
    command = [
        "classify",
        str(run.path),
        str(tmp_path / "zero.png"),
        "--json",
        "--which",
        "calibrated",
    ]
    (printed,) = json.loads(CliRunner().invoke(app, command).stdout)
    assert (printed["class"], printed["score"]) == (guesses[0].label, round(guesses[0].score, 4))


def test_a_calibrated_head_that_is_missing_or_of_an_earlier_model_is_refused(run, tmp_path):
    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    head = copy.path / "calibrated.safetensors"
    calibrate(copy.path, {}, Retraining(features=20, epochs=1))
    assert read_model(copy, which="calibrated")
    write_atomically(copy.model_path, copy.model_path.read_bytes()[:-4] + b"resu")
    with pytest.raises(UserError, match=r"calibrated\.safetensors was made from an earlier model"):
        read_model(copy, which="calibrated")
    head.write_bytes(head.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"calibrated\.safetensors does not contain the model"):
        read_model(copy, which="calibrated")
    head.unlink()
    with pytest.raises(UserError, match=r"calibrated\.safetensors is missing; `fedapp calibrate"):
        load_run(copy.path).model(which="calibrated")


def test_the_command_prints_both_accuracies(run):
    done = CliRunner().invoke(app, ["calibrate", str(run.path), "--features", "50"])
    assert done.exit_code == 0
    assert "before calibration" in done.stdout
    assert "after calibration" in done.stdout


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "feddr+"}, r"'feddr\+' has a frozen head"),
        ({"method": "fedper"}, "models of their own"),
    ],
)
def test_methods_without_a_trained_global_head_are_refused(keys, words, tmp_path):
    other = trained(tmp_path, num_rounds=1, **keys)
    with pytest.raises(UserError, match=words):
        calibrate(other.path, {})
    assert not (other.path / "calibrated.safetensors").exists()


def test_normalised_features_and_running_statistics_are_calibrated_too(tmp_path):
    keys = {"model": "resnet10", "bn": "running", "participation": 0.1, "num_rounds": 1}
    other = trained(tmp_path, method="fedfn", **keys)
    found = calibrate(other.path, {}, Retraining(features=50, epochs=2))
    assert found["after"] != found["before"]


def test_stochastic_clients_give_the_features_of_all_their_classes():
    values = settings(method="fedavg", stochastic_every=1, stochastic_from=1)
    data = ProcessContext(parse_config(values)).data
    labels = torch.cat([labels for _, labels in data.own_images(0)])
    assert len(labels) == len(data.partition.train[0])
    assert len(torch.cat([labels for _, labels in data.examples(0, 2)])) < len(labels)


def test_batches_mix_classes_where_batchnorm_normalises_by_the_batch():
    keys = {"model": "resnet10", "bn": "batch", "num_clients": 5, "test_batch_size": 60}
    data = ProcessContext(parse_config(settings(method="fedavg", **keys))).data
    batches = [labels for _, labels in data.own_images(0)]
    assert len(batches) > 2
    assert all(len(labels.unique()) > 1 for labels in batches)


@pytest.mark.parametrize(
    "values",
    [{"features": 0}, {"features": 10**11}, {"epochs": -1}, {"lr": 0}, {"lr": float("nan")}],
)
def test_values_that_train_nothing_or_take_all_memory_are_refused(values):
    (name,) = values
    with pytest.raises(UserError, match=f"{name} is .* but must be a"):
        Retraining(**values)


def test_other_keys_and_a_diverging_rate_are_refused(run):
    with pytest.raises(UserError, match=r"key 'seed' cannot differ .* data-dir, download, device"):
        calibrate(run.path, {"seed": 1})
    with pytest.raises(UserError, match=r"the head diverges at lr 1e\+08"):
        calibrate(run.path, {}, Retraining(features=20, epochs=40, lr=1e8))


def test_a_run_with_noise_is_not_calibrated(tmp_path):
    keys = {"dp_clip": 0.1, "dp_noise": 1.0, "weights": "uniform", "num_clients": 20}
    private = trained(tmp_path, method="fedavg", num_rounds=1, **keys)
    with pytest.raises(UserError, match="statistics of all clients' images, which dp-noise is to"):
        calibrate(private.path, {})
