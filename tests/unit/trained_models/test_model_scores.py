"""The test of a finished model: as in the run, on other images by class name, and its files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import ROOT, settings
from PIL import Image
from typer.testing import CliRunner

from fedapp.analysis.formulas.confusion import confusion_matrix, largest_confusions, rates
from fedapp.cli.app import app
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.interface.runs import Run, load_run
from fedapp.runtime.process.run_data import clear_data_cache
from fedapp.trained_models.calibrate import Retraining, calibrate
from fedapp.trained_models.model_scores import ClassScores
from fedapp.trained_models.personalise import personalise

DIGITS = DATASETS["digits"]


def trained(folder: Path, **changes) -> Run:
    """Train a quick run on the digits."""
    values = settings(output_dir=str(folder), run_name="one", **{"method": "fedavg", **changes})
    assert run_in_process(ROOT, values, Resources()) == 0
    return load_run(folder / "one")


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> Run:
    return trained(tmp_path_factory.mktemp("digits"), num_rounds=8, partition="iid")


@pytest.fixture
def run(once, tmp_path) -> Run:
    """A run in a folder of the test, which may write into it."""
    return load_run(shutil.copytree(once.path, tmp_path / "one"))


@pytest.fixture(autouse=True)
def nothing_kept():
    """Let no later test get the data that a test has changed."""
    yield
    clear_data_cache()


def write(folder: Path, labels: str = "0123456789", count: int = 1000) -> Path:
    """Write test images of some digits as files in class folders."""
    digits = load_dataset("digits")
    for label in map(int, labels):
        (folder / digits.classes[label]).mkdir(parents=True)
        for row in np.flatnonzero(digits.test_labels == label)[:count]:
            file = folder / digits.classes[label] / f"{row}.png"
            Image.fromarray(digits.test_images[row, ..., 0]).save(file)
    return folder


def command(*arguments: object):
    return CliRunner().invoke(app, ["test", *map(str, arguments)], env={"COLUMNS": "200"})


def test_the_rates_are_those_computed_by_hand():
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    predicted = np.array([0, 0, 1, 1, 1, 0, 1])
    matrix = confusion_matrix(labels, predicted, 5)
    assert matrix.tolist()[:2] == [[2, 2, 0, 0, 0], [1, 1, 0, 0, 0]]
    found, nan = rates(matrix), np.nan
    np.testing.assert_allclose(found.precision, [2 / 3, 1 / 4, nan, nan, nan])
    np.testing.assert_allclose(found.recall, [2 / 4, 1 / 2, nan, 0, nan])
    np.testing.assert_allclose(found.f1, [4 / 7, 1 / 3, nan, 0, nan])
    assert found.balanced_accuracy == pytest.approx(1 / 3)
    assert found.macro_f1 == pytest.approx((4 / 7 + 1 / 3) / 3)
    assert largest_confusions(matrix, 2) == [(0, 1), (1, 0)]
    assert largest_confusions(matrix, 9) == [(0, 1), (1, 0), (3, 1)]
    assert largest_confusions(np.eye(3, dtype=np.int64), 3) == []


def test_the_runs_own_images_give_its_final_accuracy_and_loss(run):
    scores, last = run.test(), run.rounds[-1]
    assert (scores.accuracy, scores.loss) == (run.summary["accuracy_final"], last.loss)
    assert scores.images == 359
    recall = [each.recall for each in scores.classes]
    assert recall == run.directory.rounds()[-1]["class_accuracy"]
    assert scores.confusion.trace() == round(scores.accuracy * 359)
    assert scores.balanced_accuracy == pytest.approx(np.mean(recall))


@pytest.mark.parametrize("changes", [{"bn": "batch"}, {"pool_data": True, "bn": "running"}])
def test_batch_norm_and_pooled_images_are_tested_as_in_the_run(tmp_path, changes):
    run = trained(tmp_path, model="resnet10", num_rounds=1, participation=0.2, **changes)
    scores = run.test()
    assert (scores.accuracy, scores.loss) == (run.summary["accuracy_final"], run.rounds[-1].loss)
    assert scores.depends_on_batch == (changes["bn"] == "batch")


def test_the_command_prints_and_writes_the_same_numbers(run):
    before = {file.name: file.read_bytes() for file in run.path.iterdir() if file.is_file()}
    done = command(run.path)
    assert done.exit_code == 0, done.output
    written = json.loads((run.path / "test.json").read_text())
    assert written["accuracy"] == run.summary["accuracy_final"]
    assert f"{100 * written['accuracy']:.1f} %" in done.stdout
    assert "359, the run's test images (digits)" in done.stdout
    first = written["confusions"][0]
    sentence = f"{first['name']} taken for {first['taken_for']}: {first['images']} of {first['of']}"
    assert sentence in done.stdout
    assert np.array(written["confusion"]).sum() == 359
    assert (run.path / "confusion.png").read_bytes().startswith(b"\x89PNG")
    after = {file.name: file.read_bytes() for file in run.path.iterdir() if file.is_file()}
    assert after.items() > before.items()
    assert after.keys() - before.keys() == {"test.json", "confusion.png"}
    assert json.loads(command(run.path, "--json").stdout) == written


@pytest.mark.parametrize("inside", ["test", "."])
def test_class_folders_are_tested_as_the_same_images(run, tmp_path, inside):
    folder = tmp_path / f"photos-{len(inside)}"
    write(folder / inside)
    own, other = run.test(), run.test("images", data_dir=folder)
    assert other.confusion.tolist() == own.confusion.tolist()
    assert other.loss == pytest.approx(own.loss)
    assert other.file == run.path / f"test-images-photos-{len(inside)}.json"
    assert other.figure.is_file()
    assert own.file.is_file()


def test_folders_of_the_same_last_name_have_files_of_their_own(run, tmp_path):
    first, second = (write(tmp_path / name / "scans", "92") for name in ("a", "b"))
    files = [run.test("images", data_dir=each).file.name for each in (first, second, first)]
    numbers = "test-images-scans.json", "test-images-scans-2.json", "test-images-scans.json"
    assert tuple(files) == numbers
    assert json.loads((run.path / numbers[1]).read_text())["tested_on"].endswith(str(second))


def test_some_classes_are_enough_and_matched_by_name(run, tmp_path):
    scores, own = run.test("images", data_dir=write(tmp_path / "photos", "92")), run.test()
    assert [each.name for each in scores.classes if each.images] == ["2", "9"]
    present = [scores.classes[label].recall for label in (2, 9)]
    assert scores.balanced_accuracy == pytest.approx(np.mean(present))
    assert present == [own.classes[label].recall for label in (2, 9)]
    assert scores.classes[0].recall is None
    assert json.loads(scores.file.read_text())["classes"][0]["f1"] is None


def test_another_data_set_is_matched_by_the_names_of_its_classes(run, monkeypatch):
    def turned(origin):
        arrays = dict(DIGITS.read(origin))
        labels = {name: 9 - arrays[name] for name in ("train_labels", "test_labels")}
        return arrays | labels | {"classes": arrays["classes"][::-1]}

    monkeypatch.setitem(DATASETS, "turned", replace(DIGITS, read=turned))
    scores = run.test("turned")
    assert scores.confusion.tolist() == run.test().confusion.tolist()
    assert scores.file.name == "test-turned.json"


def changed(**arrays):
    """Return the digits with other arrays."""
    return replace(DIGITS, read=lambda origin: dict(DIGITS.read(origin)) | arrays)


def test_images_that_the_model_does_not_know_are_refused(run, monkeypatch):
    names = np.array([*"012345678", "ten"])
    large, many = (np.zeros((count, 9, 9, 1), np.uint8) for count in (359, 1438))
    monkeypatch.setitem(DATASETS, "named", changed(classes=names))
    monkeypatch.setitem(DATASETS, "large", changed(train_images=many, test_images=large))
    nothing = {"test_images": large[:0, :8, :8], "test_labels": np.zeros(0, np.int64)}
    monkeypatch.setitem(DATASETS, "empty", changed(**nothing))
    with pytest.raises(UserError, match=r"class 'ten' of dataset 'named' is none of the model's"):
        run.test("named")
    with pytest.raises(UserError, match="'large' are 9x9 with 1 channel, but the model takes 8x8"):
        run.test("large")
    with pytest.raises(UserError, match="dataset 'empty' has no test images"):
        run.test("empty")
    with pytest.raises(UserError, match="dataset 'nowhere' does not exist"):
        run.test("nowhere")


def test_wrong_folders_and_keys_are_explained(run, tmp_path):
    folder = write(tmp_path / "photos", "1", 1)
    (folder / "ten").mkdir()
    (tmp_path / "empty").mkdir()
    for given, words in (
        ({"data_dir": folder}, "class folder .*ten is none of the run's classes"),
        ({"data_dir": tmp_path / "empty"}, r"no images in data-dir .*laid out as test/CLASS/\*"),
        ({"data_dir": tmp_path / "nowhere"}, "nowhere does not exist"),
        ({}, "dataset 'images' needs data-dir"),
        ({"device": "gpu"}, "device"),
        ({"lr": 1}, "key 'lr' cannot differ from the run's; these can: data-dir, download, device"),
        ({"data_dir": folder, "personal": run.path / "model.safetensors"}, "not a client's model"),
        ({"data_dir": folder, "which": "calibrated"}, r"calibrated\.safetensors is missing"),
    ):
        with pytest.raises(UserError, match=words):
            run.test("images", **given)
    assert not list(run.path.glob("test*"))


def test_other_data_than_the_runs_are_refused_with_advice(run, monkeypatch):
    monkeypatch.setitem(DATASETS, "digits", changed(test_labels=np.zeros(359, np.int64)))
    with pytest.raises(UserError, match=r"differ from those of the run.*name their dataset"):
        run.test(data_dir="elsewhere")
    with pytest.raises(UserError, match=r"as they were$"):
        run.test()


def test_calibrated_and_clients_models_have_files_of_their_own(run, tmp_path):
    accuracy = calibrate(run.path, {}, Retraining(features=20, epochs=1))["after"]["accuracy"]
    scores = run.test(which="calibrated")
    assert scores.accuracy == accuracy
    assert scores.file.name == "test-calibrated.json"
    personalise(run.path, {"finetune-epochs": 1}, tmp_path / "models", client=3)
    own = run.test(personal=tmp_path / "models" / "client-3.safetensors")
    assert own.file.name == "test-client-3.json"
    assert own.model == "the model in client-3.safetensors"
    assert 0.3 < own.accuracy < 1
    folder = write(tmp_path / "photos", "12", 5)
    other = run.test("images", which="calibrated", data_dir=folder)
    assert other.file.name == "test-calibrated-images-photos.json"


def test_of_many_classes_the_worst_are_named(run):
    scores = run.test()
    assert scores.worst() == scores.classes
    many = [ClassScores(str(n), 5, None, n / 30, n / 30) for n in range(30)][::-1]
    absent = [ClassScores("absent", 0, None, None, None)]
    worst = replace(scores, classes=(*absent, *many)).worst()
    assert [each.name for each in worst] == ["0", "1", "2", "3", "4"]
