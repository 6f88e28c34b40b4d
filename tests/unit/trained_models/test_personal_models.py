"""Personal models after the run: as tested in it, written whole, and used to classify."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import train_one
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from clients.base import LocalClient
from clients.fedgela import FrequencyScaledClient
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.interface.runs import load_run
from fedapp.methods.table import METHODS
from fedapp.runtime.process.earlier_run import reopened
from fedapp.trained_models.calibrate import calibrate
from fedapp.trained_models.classify import TrainedModel
from fedapp.trained_models.personalise import personalise

pytestmark = pytest.mark.usefixtures("few_images")

HETEROGENEOUS = ["feddor", "fedkd", "fedproto", "lg-fedavg", "fedgh", "fd"]
KEPT = ["local-dr", "fedper", "fedrep", "ditto", "apfl", "pfedme", "fedrod", "fedala"]


def run_of(folder: Path, method: str, **keys):
    """Train two rounds of four clients, which keep their models."""
    small = {"feature_dim": 16} if METHODS[method].heterogeneous else {}
    return train_one(folder, method=method, keep_state=True, lr=0.05, **small, **keys)


def of_client(run, client, file):
    """Return the accuracy of a client's exported model on its own test images."""
    data = reopened(run, parse_config(run.config())).data
    rows = data.partition.test[client]
    images, labels = data.dataset.test_images[rows], data.dataset.test_labels[rows]
    guesses = load_run(run.path).classify(images, personal=file)
    names = [data.dataset.classes[label] for label in labels]
    return np.mean([guess.label == name for guess, name in zip(guesses, names, strict=True)])


def test_a_regulariser_that_keeps_models_needs_no_model_of_a_client(tmp_path):
    run = train_one(tmp_path, method="per-fedavg", regulariser="moon", beta=0.9, lr=0.05)
    found = personalise(run.path, {})
    assert found["client_accuracy_mean"] == run.rounds()[-1]["client_accuracy_mean"]


@pytest.mark.parametrize("method", [*KEPT, *HETEROGENEOUS, "per-fedavg", "ifca"])
def test_kept_models_are_tested_as_in_the_run_and_classify_alike(method, tmp_path):
    run = run_of(tmp_path, method)
    found, last = personalise(run.path, {}, tmp_path / "models"), run.rounds()[-1]
    for key in ("client_accuracy_mean", "client_accuracy_std", "client_loss_mean", "client_count"):
        assert found[key] == pytest.approx(last[key], rel=1e-6), key
    assert json.loads((run.path / "personal.json").read_text())["client_count"] == 4
    for client in (0, 3):
        scores = found["clients"][client]
        expected = scores.get("accuracy_head", scores["accuracy"])
        file = tmp_path / "models" / f"client-{client}.safetensors"
        assert of_client(run, client, file) == pytest.approx(expected)


def test_a_factor_of_a_clients_logits_is_in_its_model(tmp_path, monkeypatch):
    run = train_one(tmp_path, method="fedgela-ft", lr=0.05, model="resnet10", bn="group")
    found = personalise(run.path, {}, tmp_path / "models")
    models = {c: load_file(tmp_path / "models" / f"client-{c}.safetensors") for c in range(4)}
    lengths = [np.linalg.norm(model["head.weight"], axis=1) for model in models.values()]
    assert not np.allclose(lengths[0], lengths[1])
    for client in models:
        file = tmp_path / "models" / f"client-{client}.safetensors"
        assert of_client(run, client, file) == pytest.approx(found["clients"][client]["accuracy"])
    assert issubclass(METHODS["fedgela-ft"].client.kind, FrequencyScaledClient)


def test_one_client_is_tested_alone_and_other_wishes_are_explained(tmp_path):
    run = run_of(tmp_path, "fedper")
    whole = personalise(run.path, {}, tmp_path / "all")
    before = (run.path / "personal.json").read_text()
    one = personalise(run.path, {}, tmp_path / "third", client=2)
    assert one["clients"] == {2: whole["clients"][2]}
    assert [file.name for file in (tmp_path / "third").iterdir()] == ["client-2.safetensors"]
    assert (run.path / "personal.json").read_text() == before
    with pytest.raises(UserError, match="client 4 does not exist; run 'one' has the clients 0 to"):
        personalise(run.path, {}, client=4)
    with pytest.raises(UserError, match="'finetune-epochs' cannot differ"):
        personalise(run.path, {"finetune-epochs": 1})
    with pytest.raises(UserError, match="every client of run 'one' lacks a model on this machine"):
        personalise(run.path, {"state-dir": str(tmp_path / "elsewhere")}, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(UserError, match="client 1 of run 'one' lacks a model"):
        personalise(run.path, {"state-dir": str(tmp_path / "elsewhere")}, client=1)


def test_clients_that_never_trained_are_left_out(tmp_path):
    run = run_of(tmp_path, "fedper", participation=0.5, num_rounds=1)
    found = personalise(run.path, {}, tmp_path / "models")
    assert len(found["clients"]) == found["client_count"] == 2
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_a_clients_model_is_used_by_the_command_and_a_wrong_file_is_refused(tmp_path):
    run, other = run_of(tmp_path / "a", "fedper"), run_of(tmp_path / "b", "ditto")
    models = tmp_path / "models"
    call = ["personalise", str(run.path), "--client", "1", "--export", str(models)]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0
    scores = personalise(run.path, {}, client=1)["clients"][1]
    shown = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Client 1" in shown
    assert f"Own test images {scores['examples']}" in shown
    assert f"Accuracy {100 * scores['accuracy']:.1f} %" in shown
    file = models / "client-1.safetensors"
    trained = TrainedModel.of(run, personal=file)
    assert set(load_file(file)) == set(trained.model.state_dict())
    wrong = {
        "is no file": tmp_path / "none",
        "not a client's model of method 'fedper'": run.model_path,
        "does not contain the model": tmp_path / "damaged",
    }
    wrong["damaged"] = tmp_path / "damaged"
    wrong["damaged"].write_bytes(b"12345678")
    for message, path in wrong.items():
        with pytest.raises(UserError, match=message):
            TrainedModel.of(run, personal=path)
    with pytest.raises(UserError, match="not a client's model of method 'ditto'"):
        TrainedModel.of(other, personal=file)
    with pytest.raises(UserError, match=r"has no .calibrated. one"):
        TrainedModel.of(run, personal=file, which="calibrated")
    save_file({"head.weight": np.zeros((10, 2), np.float32)}, file, trained_metadata(file))
    with pytest.raises(UserError, match="does not contain the model of this run"):
        TrainedModel.of(run, personal=file)


def test_the_head_of_a_written_model_has_an_accuracy_of_its_own(tmp_path):
    run = run_of(tmp_path, "fedproto", partition="dirichlet")
    call = ["personalise", str(run.path), "--export", str(tmp_path / "models")]
    shown = " ".join(CliRunner().invoke(app, call).stdout.split())
    rows = personalise(run.path, {})["clients"].values()
    mean = 100 * np.mean([row["accuracy_head"] for row in rows if row["examples"]])
    assert mean != pytest.approx(100 * np.mean([row["accuracy"] for row in rows]))
    assert f"The written models, by their heads {mean:.1f} %" in shown
    assert "heads" not in CliRunner().invoke(app, call[:2]).stdout


def trained_metadata(file):
    from safetensors import safe_open

    with safe_open(file, "np") as opened:
        return opened.metadata()


def test_a_models_start_is_not_needed_once_it_is_trained(tmp_path):
    """Neither its file nor its hash: the final weights have replaced it."""
    first = train_one(tmp_path / "first", num_rounds=1)
    start = tmp_path / "start.safetensors"
    start.write_bytes(first.model_path.read_bytes())
    run = train_one(tmp_path, num_rounds=2, initial_model=str(start))
    start.unlink()
    assert load_run(run.path).test().accuracy == run.rounds()[-1]["accuracy"]
    keys = {"finetune-epochs": 1, "finetune-lr": 0.01}
    assert personalise(run.path, keys)["client_count"] == 4
    assert calibrate(run.path, {})["before"]["accuracy"] == run.rounds()[-1]["accuracy"]


def test_clients_fine_tune_with_the_threads_of_the_run(tmp_path, monkeypatch):
    run, seen = train_one(tmp_path, num_rounds=1), []
    monkeypatch.setattr(
        "fedapp.trained_models.personalise._test_clients",
        lambda *_: seen.append(torch.get_num_threads()) or [],
    )
    before = torch.get_num_threads()
    for threads in (3, 1):
        with pytest.raises(UserError):  # no client has a row
            personalise(run.path, {"finetune-epochs": 1, "threads": threads})
    assert seen == [3, 1]
    assert torch.get_num_threads() == before


def test_an_exported_model_has_the_scale_of_the_clients_logits(tmp_path, monkeypatch):
    run = train_one(tmp_path, num_rounds=1)
    keys, heads = {"finetune-epochs": 1, "finetune-lr": 0.01}, {}
    for scale in (1.0, 2.0):
        monkeypatch.setattr(LocalClient, "logit_scale", lambda _, scale=scale: scale)
        folder = tmp_path / f"scale-{scale}"
        personalise(run.path, keys, folder)
        heads[scale] = load_file(folder / "client-0.safetensors")
    for name in ("head.weight", "head.bias"):
        assert np.array_equal(heads[2.0][name], 2 * heads[1.0][name])
