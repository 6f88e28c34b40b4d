"""A trained model says the classes of images, without the data set on which it was trained."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import ROOT, settings
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

from fedapp.analysis.classify import TrainedModel
from fedapp.cli.app import app
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.interface.runs import load_run
from fedapp.results.run_directory import RunDirectory


def trained(folder: Path, **changes) -> RunDirectory:
    """Train a quick run on the digits."""
    values = settings(method="fedavg", output_dir=str(folder), run_name="one", **changes)
    assert run_in_process(ROOT, values, Resources()) == 0
    return RunDirectory.load(folder / "one")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    return trained(tmp_path_factory.mktemp("digits"), num_rounds=8, partition="iid")


@pytest.fixture
def without_data(monkeypatch):
    """Let no data set be read."""

    def absent(origin):
        raise UserError("there are no data here")

    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], read=absent))


@pytest.fixture
def files(tmp_path) -> list[Path]:
    """Twenty test images as files."""
    paths = [tmp_path / f"{index}.png" for index in range(20)]
    for path, pixels in zip(paths, load_dataset("digits").test_images, strict=False):
        Image.fromarray(pixels[..., 0]).save(path)
    return paths


def test_the_guesses_are_right_as_often_as_the_runs_last_test(run):
    digits = load_dataset("digits")
    guesses = load_run(run.path).classify(digits.test_images)
    right = [digits.classes[label] for label in digits.test_labels]
    share = np.mean([guess.label == name for guess, name in zip(guesses, right, strict=True)])
    assert share == pytest.approx(run.summary()["accuracy_final"])
    assert share > 0.5
    assert all(0.1 <= guess.probability <= 1 for guess in guesses)


def test_files_give_the_same_as_their_pixels(run, files):
    by_array = load_run(run.path).classify(load_dataset("digits").test_images[:20])
    done = CliRunner().invoke(app, ["classify", str(run.path), *map(str, files), "--json"])
    assert json.loads(done.stdout) == [
        {"image": str(file), "class": guess.label, "probability": round(guess.probability, 4)}
        for file, guess in zip(files, by_array, strict=True)
    ]


def test_the_model_says_what_it_takes_and_needs_no_data(run, without_data):
    form = load_run(run.path).image_format
    assert (form.classes, form.side, form.channels) == (tuple("0123456789"), 8, 1)
    assert (form.mean, form.std) == ((0.3055,), (0.3759,))
    stored = load_file(run.model_path)
    state = load_run(run.path).model().state_dict()
    assert all(np.array_equal(stored[name], tensor.numpy()) for name, tensor in state.items())


def test_a_photo_is_cut_scaled_and_made_grey(run, files, tmp_path):
    grey = Image.open(files[0]).convert("RGB").resize((80, 80), Image.Resampling.NEAREST)
    wide = Image.new("RGB", (120, 80))
    wide.paste(grey, (20, 0))
    wide.save(tmp_path / "wide.png")
    first, photo = TrainedModel.of(run).classify([files[0], tmp_path / "wide.png"])
    assert photo.label == first.label


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            r"uint8 \[2, 8, 8, 3\] but must be .* \[n, 8, 8, 1\]",
        ),
        (np.zeros((2, 8, 8, 1), np.float32), r"images are float32 .* but must be uint8"),
        (["nowhere.png"], r"cannot read image nowhere\.png: .*No such file"),
    ],
)
def test_images_that_the_model_cannot_take_are_refused(run, images, words):
    with pytest.raises(UserError, match=words):
        TrainedModel.of(run).classify(images)


def test_a_model_without_the_form_of_its_images_is_refused(run, tmp_path):
    other = RunDirectory.create(tmp_path, "old", run.config())
    other.write_summary(run.summary())
    other.save_model(load_file(run.model_path), {"method": "fedavg"})
    with pytest.raises(UserError, match=r"model\.safetensors does not say what images its model"):
        TrainedModel.of(other)


def test_batch_statistics_need_several_images_and_are_noted(tmp_path, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # a narrow table wraps long paths
    run = trained(tmp_path, model="resnet10", num_rounds=1, participation=0.1, bn="batch")
    with pytest.raises(UserError, match="one image cannot be classified alone: the BatchNorm"):
        TrainedModel.of(run).classify(files[:1])
    done = CliRunner().invoke(app, ["classify", str(run.path), *map(str, files)])
    assert done.exit_code == 0
    assert "note: the BatchNorm of this model normalises over the images" in done.stderr
    assert str(files[19]) in done.stdout
