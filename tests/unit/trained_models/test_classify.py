"""A trained model says the classes of images, without the data set on which it was trained."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import ROOT, settings
from PIL import Image
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.data.image_format import ImageFormat
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.interface.runs import load_run
from fedapp.results.final_model import read_image_format
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.trained_models import classify
from fedapp.trained_models.classify import TrainedModel

DIGITS = DATASETS["digits"]

DEEP = "deep.png"
CONFIGURATIONS = [
    {"method": "feddr+"},
    {"method": "fedetf", "bottleneck": 16, "bottleneck_layers": 2},
    {"method": "fedgela", "model": "resnet10", "bn": "group"},
    {"method": "spherefed", "model": "resnet10", "bn": "running"},
    {"method": "fedavg-ft", "model": "resnet10", "bn": "batch", "pool_data": True},
]


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

    monkeypatch.setitem(DATASETS, "digits", replace(DIGITS, read=absent))


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
    assert all(0.1 <= guess.score <= 1 for guess in guesses)


def test_many_batches_give_what_one_gives_in_the_same_order(run, monkeypatch):
    images = load_dataset("digits").train_images[:30]
    whole = TrainedModel.of(run).classify(images)
    monkeypatch.setattr(classify, "BATCH", 7)
    parts = TrainedModel.of(run).classify(images)
    assert [guess.label for guess in parts] == [guess.label for guess in whole]
    assert [guess.score for guess in parts] == pytest.approx([guess.score for guess in whole])


def test_one_path_and_any_iterable_of_paths_are_taken(run, files):
    trained_model = TrainedModel.of(run)
    (one,) = trained_model.classify(str(files[0]))
    assert trained_model.classify(path for path in files[:1]) == [one]
    assert trained_model.classify([]) == []


def test_files_give_the_same_as_their_pixels(run, files):
    by_array = load_run(run.path).classify(load_dataset("digits").test_images[:20])
    done = CliRunner().invoke(app, ["classify", str(run.path), *map(str, files), "--json"])
    assert json.loads(done.stdout) == [
        {"image": str(file), "class": guess.label, "score": round(guess.score, 4)}
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
    assert photo.score == pytest.approx(first.score, abs=0.02)


def test_grey_and_coloured_photos_are_stretched_to_three_channels(tmp_path):
    files = [tmp_path / "grey.png", tmp_path / "coloured.png"]
    for file, mode in zip(files, ("L", "RGB"), strict=True):
        Image.new(mode, (9, 5), 200 if mode == "L" else (200, 10, 10)).save(file)
    form = ImageFormat(("a", "b"), (0.5,) * 3, (0.5,) * 3, 4, 3)
    config = parse_config({"method": "fedavg", "dataset": "flowers102", "partition": "iid"})
    model = TrainedModel(torch.nn.Identity(), form, config, torch.device("cpu"))
    pixels = model._read(files, np.arange(2))
    assert pixels.shape == (2, 4, 4, 3)
    assert np.unique(pixels[0]).tolist() == [200]


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [None]}, {"mean": "abc"}, {"std": [0]}, {"std": [1, 1]}, {"side": True},
        {"channels": 2}, {"classes": [1, None]},
    ],
)  # fmt: skip
def test_a_form_of_images_that_cannot_be_is_refused(change):
    form = {"classes": ["a"], "mean": [0.5], "std": [0.5], "side": 8, "channels": 1}
    texts = {name: json.dumps(value) for name, value in form.items()}
    assert ImageFormat.of_metadata(texts, "model").as_metadata() == texts
    texts |= {name: json.dumps(value) for name, value in change.items()}
    with pytest.raises(UserError, match="model does not say what images its model takes"):
        ImageFormat.of_metadata(texts, "model")


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            r"uint8 \[2, 8, 8, 3\] but must be .* \[n, 8, 8, 1\]",
        ),
        (np.zeros((2, 8, 8, 1), np.float32), r"images are float32 .* but must be uint8"),
        ([DEEP], "deep.png has more than 8 bits per channel"),
        (["nowhere.png"], r"cannot read image nowhere\.png: .*No such file"),
    ],
)
def test_images_that_the_model_cannot_take_are_refused(run, images, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.full((8, 8), 300, np.uint16)).save(DEEP)
    with pytest.raises(UserError, match=words):
        TrainedModel.of(run).classify(images)


def test_a_model_without_the_form_of_its_images_is_refused(run, tmp_path):
    other = RunDirectory.create(tmp_path, "old", run.config())
    other.write_summary(run.summary())
    other.save_model(load_file(run.model_path), {"method": "fedavg"})
    with pytest.raises(UserError, match=r"model\.safetensors does not say what images its model"):
        TrainedModel.of(other)


@pytest.mark.parametrize("changes", CONFIGURATIONS, ids=lambda changes: changes["method"])
def test_the_network_is_that_of_the_run(tmp_path, changes, without_data):
    with pytest.MonkeyPatch.context() as data:
        data.setitem(DATASETS, "digits", DIGITS)
        config = parse_config(settings(**changes))
        process = ProcessContext(config)
    with torch.no_grad():
        for tensor in process.model.parameters():
            tensor += torch.randn_like(tensor) / 10  # not what the seed gives
    run = RunDirectory.create(tmp_path, "one", config.recorded())
    form = process.data.dataset.image_format
    run.save_model(process.model.state_dict(), form.as_metadata())
    run.write_summary({"status": "completed"})
    found, images = TrainedModel.of(run), torch.rand(6, 1, 8, 8)
    assert found.images == form
    expected = process.model.eval()(images)
    assert all(torch.equal(a, b) for a, b in zip(found.model(images), expected, strict=True))


def test_a_model_whose_weights_are_not_finite_is_refused(run, tmp_path):
    copy = RunDirectory.load(shutil.copytree(run.path, tmp_path / "copy"))
    weights = load_file(copy.model_path)
    weights["head.bias"][0] = np.nan
    save_file(weights, copy.model_path, read_image_format(copy).as_metadata())
    with pytest.raises(UserError, match=r"'head\.bias' has values that are not finite"):
        TrainedModel.of(copy)


def test_batch_statistics_are_those_of_the_runs_test(tmp_path):
    digits = load_dataset("digits")
    run = trained(tmp_path, model="resnet10", num_rounds=2, partition="iid", bn="batch")
    guesses = TrainedModel.of(run).classify(digits.test_images)
    right = [digits.classes[label] for label in digits.test_labels]
    share = np.mean([guess.label == name for guess, name in zip(guesses, right, strict=True)])
    assert share == pytest.approx(run.summary()["accuracy_final"])


def test_batch_statistics_need_several_images_and_are_noted(tmp_path, files, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")  # a narrow table wraps long paths
    run = trained(tmp_path, model="resnet10", num_rounds=1, participation=0.1, bn="batch")
    with pytest.raises(UserError, match="one image cannot be classified alone: the BatchNorm"):
        TrainedModel.of(run).classify(files[:1])
    done = CliRunner().invoke(app, ["classify", str(run.path), *map(str, files)])
    assert done.exit_code == 0
    assert "note: the BatchNorm of this model normalises over the images" in done.stderr
    assert str(files[19]) in done.stdout
