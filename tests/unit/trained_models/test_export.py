"""An exported model gives the scores of `fedapp classify`, and needs PyTorch alone."""

import importlib.util
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import ROOT, settings, train_one
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner

from clients.training.local_training import LocalSettings
from fedapp import __version__
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.files import safetensors_bytes
from fedapp.data.image_format import ImageFormat
from fedapp.interface.runs import Run, load_run
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES, BackboneInfo
from fedapp.models.groups import MODEL_GROUPS, ModelGroup
from fedapp.models.heads import HEADS
from fedapp.models.model import Model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.global_model import build_global_model
from fedapp.runtime.process.heterogeneous_models import HeterogeneousSlots
from fedapp.trained_models.calibrate import Retraining, calibrate
from fedapp.trained_models.personalise import personalise

CPU = torch.device("cpu")
SMALL = ImageFormat(("ant", "bee", "cat"), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), 8, 3)
LARGER = ImageFormat(SMALL.classes, (0.3,), (0.4,), 16, 1)
NETWORKS = [*((name, "running") for name in BACKBONES), ("resnet10", "batch"),
            ("resnet10", "group")]  # fmt: skip
# One of each family: those left out have more of the same layers.
PERSONAL = {
    "fedavgcnn": {}, "resnet8": {"feature_map": "linear"}, "mixer": {},
    "resnet18": {"feddor_classifier": "normalised-linear"}, "resnet50": {"method": "fedproto"},
    "googlenet": {}, "mobilenetv2-quarter": {},
}  # fmt: skip
METHOD_OF = {row.head.name: name for name, row in METHODS.items() if row.has_global_model}


def pictures(form: ImageFormat, count: int) -> Tensor:
    """Return images of four random colours each, uint8 [count, side, side, channels]."""
    draws = np.random.default_rng(0)
    colours = draws.integers(0, 256, (count, 2, 2, form.channels), dtype=np.uint8)
    return torch.from_numpy(colours.repeat(form.side // 2, 1).repeat(form.side // 2, 2))


def stirred(model: Model, form: ImageFormat) -> dict[str, Tensor]:
    """Return tensors with other values than the initial ones, which tell images apart."""
    inputs = pictures(form, 32).permute(0, 3, 1, 2) / 64 - 2
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for name, tensor in model.named_parameters():  # small biases: images differ more
            tensor *= 0.01 if name.endswith("bias") else 0.5 + torch.rand_like(tensor)
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.momentum = None  # the statistics of the images replace the initial ones
        model.train()(inputs)
        model.head.weight /= model.eval()(inputs)[1].std(dim=0).mean()
    return model.state_dict()


def ended(folder: Path, **changes) -> Run:
    """Return a run that has ended with a global model, if its method has one, without training."""
    config = parse_config(settings(dataset="cifar10", **{"method": "fedavg", **changes}))
    run = RunDirectory.create(folder, "one", config.recorded())
    if METHODS[config.method].has_global_model:
        tensors = stirred(build_global_model(config, SMALL, CPU), SMALL)
        run.save_model(tensors, SMALL.as_metadata())
        run.write_summary({"status": "completed"})
    return Run(run)


def of_client(run: Run, form: ImageFormat, file: Path) -> Path:
    """Write a file of the first client's model."""
    config = parse_config(run.directory.config())
    parts = config, METHODS[config.method], form, CPU, LocalSettings(epochs=0)
    metadata = {**form.as_metadata(), "client": "0", "method": config.method}
    tensors = stirred(HeterogeneousSlots(*parts).to_load(0), form)
    file.write_bytes(safetensors_bytes(tensors, metadata))
    return file


def check(run: Run, file: Path, form: ImageFormat, **which) -> None:
    """Assert that a program gives the labels and scores of the run's model, on any device."""
    images = pictures(form, 9)
    program, guesses = torch.export.load(file).module(), run.classify(images.numpy(), **which)
    scores, labels = program(images).max(dim=1)
    assert [form.classes[label] for label in labels] == [guess.label for guess in guesses]
    assert scores.tolist() == pytest.approx([guess.score for guess in guesses], abs=1e-5)
    assert np.ptp(scores.numpy()) > 1e-4, "all images are alike"
    elsewhere = program.to("meta")(images.to("meta"))
    assert elsewhere.shape == (9, len(form.classes))


def command(*arguments: object):
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Run:
    return load_run(train_one(tmp_path_factory.mktemp("digits"), lr=0.05).path)


@pytest.mark.parametrize(("model", "bn"), NETWORKS)
def test_every_network_gives_the_scores_of_classify(tmp_path, model, bn):
    run = ended(tmp_path, model=model, bn=bn)
    check(run, run.export(), SMALL)


@pytest.mark.parametrize("head", sorted(HEADS.keys() - {"cosine"}))  # no method has it by itself
def test_every_head_gives_the_scores_of_classify(tmp_path, head):
    run = ended(tmp_path, method=METHOD_OF[head], bottleneck=64)
    check(run, run.export(), SMALL)


@pytest.mark.parametrize("name", PERSONAL)
def test_networks_of_clients_give_the_scores_of_classify(tmp_path, monkeypatch, name):
    monkeypatch.setitem(MODEL_GROUPS, "mine", ModelGroup((name,), (16, 0), 32))
    keys = {"method": "feddor", **PERSONAL[name]}
    run = ended(tmp_path, model_group="mine", partition="dirichlet", **keys)
    own = of_client(run, LARGER, tmp_path / "client-0.safetensors")
    check(run, run.export(personal=own), LARGER, personal=own)


def test_the_example_needs_pytorch_alone(trained, tmp_path):
    page = (ROOT / "docs" / "python.md").read_text()
    code = re.search(r"<!-- example: an exported model -->\n```python\n(.*?)```", page, re.S)[1]
    (tmp_path / "runs" / "first").mkdir(parents=True)
    trained.export(tmp_path / "runs" / "first" / "model.pt2")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    watch = "import sys\nprint(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code + watch], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (guess,) = trained.classify(tmp_path / "photo.png")
    answer, modules = done.stdout.splitlines()
    label, score = answer.split()
    assert (label, float(score)) == (guess.label, pytest.approx(guess.score, abs=1e-4))
    assert "torch" in modules.split()
    assert not {"fedapp", "clients", "strategies", "torchvision", "flwr"} & set(modules.split())


def test_the_command_replaces_the_file_of_the_run_with_equal_bytes(trained):
    done, file = command(trained.path), trained.path / "model.pt2"
    assert done.exit_code == 0, done.output
    assert done.stderr == f"wrote {file}\n"
    first = file.read_bytes()
    file.write_bytes(b"old")
    assert command(trained.path).exit_code == 0
    assert file.read_bytes() == first
    with zipfile.ZipFile(file) as archive:
        assert not [name for name in archive.namelist() if str(ROOT).encode() in archive.read(name)]


def test_the_file_says_what_the_program_takes(trained, tmp_path):
    texts = {"fedapp.json": ""}
    torch.export.load(trained.export(tmp_path / "new" / "m.pt2"), extra_files=texts)
    assert json.loads(texts["fedapp.json"]) == {
        "classes": [*"0123456789"], "side": 8, "channels": 1, "depends_on_batch": False,
        "method": "fedavg", "run": "one", "fedapp": __version__,
        "torch": torch.__version__,
    }  # fmt: skip


def test_calibrated_and_clients_models_have_files_of_their_own(trained, tmp_path):
    calibrate(trained.path, {}, Retraining(features=20, epochs=1))
    form, file = trained.image_format, trained.export(which="calibrated")
    assert file == trained.path / "model-calibrated.pt2"
    check(trained, file, form, which="calibrated")
    personalise(trained.path, {"finetune-epochs": 1}, tmp_path / "models", client=3)
    own = tmp_path / "models" / "client-3.safetensors"
    file = trained.export(personal=own)
    assert file == trained.path / "model-client-3.pt2"
    check(trained, file, form, personal=own)


def test_a_model_that_normalises_by_the_batch_is_noted(tmp_path):
    run, texts = ended(tmp_path, model="resnet10", bn="batch"), {"fedapp.json": ""}
    done = command(run.path)
    assert done.exit_code == 0, done.output
    assert "note: the BatchNorm of this model normalises over the images" in done.stderr
    torch.export.load(run.path / "model.pt2", extra_files=texts)
    assert json.loads(texts["fedapp.json"])["depends_on_batch"]


def test_wrong_files_are_explained(trained, tmp_path, monkeypatch):
    (tmp_path / "old.pt2").write_bytes(b"old")
    (tmp_path / "folder.onnx").mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name, words in (
        ("model.txt", r"model\.txt' must end in \.pt2 \(for PyTorch\) or \.onnx"),
        ("model", r"model' must end in \.pt2"),
        ("old.pt2", r"old\.pt2 exists already; name a new file"),
        ("folder.onnx", r"folder\.onnx exists already"),
        ("old.pt2/model.pt2", r"model\.pt2 cannot be written: .*old\.pt2 is not a folder"),
        ("model.onnx", r"not installed: pip install onnx onnxscript; or name a \.pt2 file"),
    ):
        with pytest.raises(UserError, match=words):
            trained.export(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder.onnx", "old.pt2"]
    assert (tmp_path / "old.pt2").read_bytes() == b"old"


def test_runs_without_such_a_model_are_explained(tmp_path):
    run = ended(tmp_path, method="fedproto", model_group="tiny", partition="dirichlet")
    with pytest.raises(UserError, match=r"models of their own: .*`fedapp test` or `fedapp export`"):
        run.export()
    with pytest.raises(UserError, match=r"nowhere\.safetensors is no file"):
        run.export(personal="nowhere.safetensors")


class Wavering(nn.Module):
    """A network whose layers depend on the images."""

    def forward(self, images: Tensor) -> Tensor:
        features = images.flatten(1)
        return features if features.sum() > 0 else -features


def test_a_network_that_cannot_be_a_program_is_explained(tmp_path, monkeypatch, capsys):
    row = BackboneInfo(lambda channels, side, norm: Wavering(), 192, False)
    monkeypatch.setitem(BACKBONES, "wavering", row)
    run = ended(tmp_path, model="wavering")
    with pytest.raises(
        UserError, match=r"run 'one' cannot be exported as \.pt2: \w+: .*$"
    ) as error:
        run.export()
    assert "\n" not in str(error.value)
    assert "def forward" not in capsys.readouterr().err
    assert not (run.path / "model.pt2").exists()
