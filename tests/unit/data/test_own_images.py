"""Clients with data folders of their own: matched by class name, misfits refused in a sentence."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from in_process import settings
from PIL import Image
from safetensors.numpy import load_file

from fedapp import server_app
from fedapp.analysis.session import AnalysisRequest, analyse_runs
from fedapp.core.errors import UserError
from fedapp.data.readers.own_images import class_names, load_named_images
from fedapp.engines.in_process import InProcessGrid
from fedapp.interface.runs import load_run
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.node.identity import describe
from fedapp.trained_models.calibrate import Retraining, calibrate
from fedapp.trained_models.personalise import personalise

CLASSES = "cat dog owl"


pytestmark = pytest.mark.usefixtures("cache")


def write(root: Path, split: str, name: str, count: int, side: int = 32, mode: str = "RGB") -> None:
    """Write images whose brightness tells their class, so that they can be learnt."""
    folder = root / split / name
    folder.mkdir(parents=True)
    rng = np.random.default_rng(CLASSES.find(name) + 1)
    for index in range(count):
        pixels = rng.integers(0, 60, (side, side, 3)) + 30 * (1 + CLASSES.find(name))
        image = Image.fromarray(pixels.astype(np.uint8)).convert(mode)
        image.save(folder / f"{index}.png")


@pytest.fixture
def hosts(tmp_path) -> dict[str, Path]:
    """Three hosts: a server to test on, and two clients of which neither has all classes."""
    found = {name: tmp_path / name for name in ("server", "first", "second")}
    for name in CLASSES.split():
        write(found["server"], "test", name, 4)
    write(found["first"], "train", "dog", 6)
    write(found["first"], "train", "cat", 6)
    write(found["first"], "test", "dog", 2)
    write(found["second"], "train", "owl", 8)
    return found


def train(hosts: dict[str, Path], tmp_path: Path, **changes) -> RunDirectory:
    """Run one federation in this process; raises UserError as the ServerApp does."""
    chosen = {
        "dataset": "images", "partition": "own", "classes": CLASSES, "num_clients": 2,
        "participation": 1.0, "output_dir": str(tmp_path / "runs"), "run_name": "own",
        "client_eval_every": 1,
    }  # fmt: skip
    values = settings(**(chosen | changes))
    grid = InProcessGrid(values, 2)
    for context, host in zip(grid.contexts.values(), ("first", "second"), strict=True):
        context.node_config["data-dir"] = str(hosts[host])
    server_app.run(grid, values, str(hosts["server"]), 0.0)
    return RunDirectory.load(tmp_path / "runs" / "own")


def test_clients_train_on_their_own_folders_and_the_server_tests_on_its_own(hosts, tmp_path):
    run = train(hosts, tmp_path)
    rows = run.rounds()
    assert [row["clients"] for row in rows] == [2, 2]
    assert run.summary()["status"] == "completed"
    assert rows[0]["images"] == 20


def test_a_head_is_calibrated_with_what_the_hosts_tell_of_their_features(hosts, tmp_path):
    run = train(hosts, tmp_path, method="fedavg", class_statistics=True)
    counts = load_file(run.path / "class_statistics.safetensors")["counts"]
    assert counts.tolist() == [6, 6, 8]
    here = {"data-dir": str(hosts["server"])}
    found = calibrate(run.path, here, Retraining(features=50, epochs=2))
    assert found["before"] != found["after"]
    (run.path / "class_statistics.safetensors").unlink()
    with pytest.raises(UserError, match=r"\(partition 'own'\), and the run has not asked them"):
        calibrate(run.path, here)


def test_labels_are_matched_by_name_whatever_a_host_has(hosts):
    first = load_named_images(str(hosts["first"]), CLASSES.split())
    second = load_named_images(str(hosts["second"]), CLASSES.split())
    assert sorted(first["train_labels"]) == [0] * 6 + [1] * 6
    assert set(second["train_labels"]) == {2}
    assert second["test_labels"].shape == (0,)
    assert second["test_images"].shape == (0, 32, 32, 3)
    other_order = load_named_images(str(hosts["second"]), ["owl", "cat", "dog"])
    assert set(other_order["train_labels"]) == {0}


def test_a_class_that_nobody_listed_is_refused_by_name(hosts, tmp_path):
    write(hosts["second"], "train", "wolf", 2)
    with pytest.raises(UserError, match=r"node 101 cannot take part: class folder .*wolf is none"):
        train(hosts, tmp_path)


def test_a_folder_whose_name_is_no_utf_8_is_refused_by_name(hosts, tmp_path):
    (hosts["second"] / "train" / os.fsdecode(b"caf\xe9")).mkdir()
    with pytest.raises(UserError, match=r"node 101 cannot take part: class folder .*caf\\udce9 is"):
        train(hosts, tmp_path)


@pytest.mark.parametrize("misfit", [{"side": 24}, {"mode": "L"}])
def test_other_sizes_and_channels_are_refused_by_name(hosts, tmp_path, misfit):
    hosts["second"] = tmp_path / "misfit"
    write(hosts["second"], "train", "owl", 2, **misfit)
    with pytest.raises(UserError, match=r"node 101 \(partition 1 .*another form of images \("):
        train(hosts, tmp_path)


def test_a_client_without_images_is_refused(hosts, tmp_path):
    hosts["second"] = tmp_path / "only-test"
    write(hosts["second"], "test", "owl", 2)
    with pytest.raises(UserError, match="client 1 has no images to train on"):
        train(hosts, tmp_path)
    hosts["second"] = tmp_path / "nothing"
    with pytest.raises(UserError, match=r"node 101 cannot take part: data-dir .*nothing does"):
        train(hosts, tmp_path, run_name="again")


def test_a_server_without_test_images_says_so(hosts, tmp_path):
    hosts["server"] = hosts["second"]
    with pytest.raises(UserError, match="the server needs images to test on"):
        train(hosts, tmp_path)


def test_every_client_needs_a_node_of_its_own(hosts, tmp_path):
    with pytest.raises(UserError, match="num-partitions is 2 but must be num-clients, 4"):
        train(hosts, tmp_path, num_clients=4)


def test_a_node_beyond_the_clients_is_refused(hosts):
    run = settings(dataset="images", partition="own", classes=CLASSES, num_clients=4)
    place = {"partition-id": 4, "num-partitions": 5, "data-dir": str(hosts["first"])}
    with pytest.raises(UserError, match="num-partitions is 5 but must be num-clients, 4"):
        describe(Context(1, 7, place, RecordDict(), run))


@pytest.mark.parametrize("changes", [{"classes": ""}, {"partition": "iid"}, {"dataset": "digits"}])
def test_the_three_keys_belong_together(hosts, tmp_path, changes):
    with pytest.raises(UserError, match="belong together: set all three or none"):
        train(hosts, tmp_path, **changes)


def test_measures_of_the_clients_data_are_refused(hosts, tmp_path):
    from fedapp.analysis.measures.table import MEASURES

    with pytest.raises(UserError, match="stays on their hosts"):
        train(hosts, tmp_path, method="fedavg", analyses=next(iter(MEASURES)))


def test_a_finished_run_is_measured_only_where_that_needs_no_data_of_clients(hosts, tmp_path):
    run = train(hosts, tmp_path, method="fedavg", num_rounds=1)
    here = {"data-dir": str(hosts["server"])}
    with pytest.raises(UserError, match=r"measure 'norms' of .*own trains local models.*hosts"):
        analyse_runs([run.path], AnalysisRequest("four-factors norms", overrides=here), print)
    assert not (run.path / "analysis.json").exists()
    found = analyse_runs([run.path], AnalysisRequest("four-factors", overrides=here), print)
    assert found["fedavg"][0]["clients"] == []
    with pytest.raises(UserError, match=r"clients of .*own stay on their hosts.* name the client"):
        personalise(run.path, here, tmp_path / "models")
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("method", ["fedper", "ditto", "fedavg-ft"])
def test_a_host_tests_and_writes_the_model_of_its_own_client(hosts, tmp_path, method):
    run = train(hosts, tmp_path, method=method, keep_state=True, lr=0.05)
    last, there = run.rounds()[-1], {"data-dir": str(hosts["first"])}
    found = personalise(run.path, there, tmp_path / "models", client=0)
    assert found["client_accuracy_mean"] == last["client_accuracy_mean"]  # the second has no tests
    assert found["client_loss_mean"] == pytest.approx(last["client_loss_mean"], rel=1e-6)
    photos = sorted((hosts["first"] / "test" / "dog").iterdir())
    (file,) = (tmp_path / "models").iterdir()
    guesses = load_run(run.path).classify(photos, personal=file)
    right = np.mean([guess.label == "dog" for guess in guesses])
    assert right == found["clients"][0]["accuracy"]
    assert not (run.path / "personal.json").exists()


def test_class_names_may_hold_spaces_between_commas():
    assert class_names("red fox, owl") == ("red fox", "owl")
    assert class_names("cat dog") == ("cat", "dog")
    for wrong in ("cat", "cat cat", "cat,,dog"):
        with pytest.raises(UserError, match="two or more different class names"):
            class_names(wrong)
