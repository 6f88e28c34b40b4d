"""Partition 'folders': the simulation of hosts that have a folder of images each."""

import os
from pathlib import Path

import numpy as np
import pytest
from in_process import settings
from PIL import Image
from test_own_images import CLASSES, train, write
from typer.testing import CliRunner

from fedapp import server_app
from fedapp.cli import app as cli
from fedapp.config.effect import without_effect
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.partition.table import PartitionSpec, make_partition
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import reopened
from fedapp.runtime.process.run_data import clear_data_cache, data_hash, load_partition

ROOT = Path(__file__).parents[3]
FOLDERS = {
    "dataset": "images", "partition": "folders", "num_clients": 2, "participation": 1.0,
    "client_eval_every": 1,
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def sites(tmp_path) -> Path:
    """Two clients, of which neither has all classes, and the second has no test images."""
    clear_data_cache()
    folder = tmp_path / "sites"
    for name, count in (("dog", 6), ("cat", 7)):
        write(folder / "berlin", "train", name, count)
    write(folder / "berlin", "test", "dog", 2)
    write(folder / "paris", "train", "owl", 8)
    return folder


def run_of(sites: Path, **changes):
    return parse_config(settings(**{**FOLDERS, "data_dir": str(sites), **changes}))


def simulate(sites: Path, nodes: int = 1, name: str = "simulated", **changes) -> RunDirectory:
    """Simulate the clients in this process; raises UserError as the ServerApp does."""
    runs = sites.parent / "simulations"
    values = settings(
        **{**FOLDERS, "data_dir": str(sites), "output_dir": str(runs), "run_name": name, **changes}
    )
    server_app.run(InProcessGrid(values, nodes), values, "", 0.0)
    return RunDirectory.load(runs / name)


def weights(run: RunDirectory) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "scaffold", "augmentation": "crop flip"},
        {"method": "feddr+", "classes": "owl dog cat", "participation": 0.5, "batch_size": 4},
        {"method": "fedavg", "image_size": 16, "num_rounds": 1},
    ],
)
def test_the_model_is_that_of_hosts_with_the_same_folders(sites, tmp_path, changes):
    hosts = {"server": tmp_path / "server", "first": sites / "berlin", "second": sites / "paris"}
    write(hosts["server"], "test", "cat", 3)
    real = train(hosts, tmp_path, **{"classes": "cat dog owl", **changes})
    simulated = simulate(sites, **changes)
    assert weights(simulated) == weights(real)
    assert weights(simulate(sites, 2, "on-two-nodes", **changes)) == weights(real)
    for mine, theirs in zip(simulated.rounds(), real.rounds(), strict=True):
        assert mine["train_loss"] == theirs["train_loss"]
        assert mine.get("client_accuracy_mean") == theirs.get("client_accuracy_mean")


def test_every_client_has_the_images_of_its_folder(sites):
    data, parts = load_partition(run_of(sites))
    assert data.classes == ("cat", "dog", "owl")
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)
    assert parts.class_counts(data.train_labels, 3).tolist() == [[7, 6, 0], [0, 0, 8]]
    assert [len(part) for part in parts.test] == [2, 0]
    assert parts.notes == ("the clients from 0 on: berlin, paris",)
    swapped, _ = load_partition(run_of(sites, classes="owl dog cat"))
    assert swapped.train_labels.tolist() == [2] * 7 + [1] * 6 + [0] * 8


def hash_of(sites: Path) -> str:
    clear_data_cache()
    return data_hash(*load_partition(run_of(sites)))


def test_the_hash_tells_whose_an_image_is(sites, tmp_path):
    run, before = simulate(sites, method="fedavg", num_rounds=1), hash_of(sites)
    assert reopened(run, run_of(sites, method="fedavg")).data.hash == before
    write(sites / "paris", "train", "cat", 1)
    (sites / "paris" / "train" / "cat" / "0.png").rename(tmp_path / "kept.png")
    (sites / "berlin" / "train" / "cat" / "6.png").rename(sites / "paris/train/cat/6.png")
    assert hash_of(sites) != before
    with pytest.raises(UserError, match="or their division among the clients, differ from those"):
        reopened(run, run_of(sites, method="fedavg"))
    (sites / "paris" / "train" / "cat" / "6.png").rename(sites / "berlin/train/cat/6.png")
    (sites / "paris" / "train" / "cat").rmdir()
    assert hash_of(sites) == before
    os.rename(sites / "berlin", sites / "rome")  # now the second client
    assert hash_of(sites) != before


def test_the_commands_understand_it(sites):
    keys = f"dataset='images' partition='folders' num-clients=2 data-dir='{sites}' method='fedavg'"
    for command, words in (
        (["partition"], ("dog", "the clients from 0 on: berlin, paris")),
        (["config"], ("folders",)),
        (["run", "--check"], ("images, 2 clients (folders)",)),
    ):
        done = CliRunner().invoke(cli.app, [*command, "--app", str(ROOT), "-c", keys])
        assert done.exit_code == 0, done.output
        assert all(each in done.output for each in words)
    given = run_of(sites, classes=CLASSES)
    assert without_effect(["classes"], given) == ""
    assert without_effect(["shards"], given).startswith("shards has no effect")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_clients": 20}, r"num-clients is 20, but data-dir .*sites has 2 client folders "
         r"\(berlin, paris\); set num-clients=2"),
        ({"classes": "cat dog"}, r"class folder .*paris/train/owl is none of the run's classes"),
        ({"classes": "cat"}, "'classes' is 'cat' but must be two or more different class names"),
        ({"data_dir": ""}, r"needs data-dir: a folder with CLIENT/train/CLASS/\*\.jpg"),
        ({"data_dir": "/nowhere"}, r"data-dir /nowhere does not exist; it must have CLIENT/train"),
        ({"dataset": "digits"}, "is for dataset 'images', but dataset is 'digits': set dataset="),
        ({"pool_data": True}, "'pool-data' is true, but with .*'folders' every client has train"),
        ({"test_share": 0.2}, "'test-share' is 0.2, but with .* the folders CLIENT/test have the"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_keys_is_one_sentence(sites, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        ProcessContext(run_of(sites, **changes))


@pytest.mark.parametrize(
    ("folder", "split", "sentence"),
    [
        ("rome", "test", r"client folder .*rome has no images to train on; data-dir .*sites must"),
        ("", "train", r"client folder .*train has no images to train on; data-dir .*sites must"),
    ],
)
def test_a_client_without_training_images_is_refused(sites, folder, split, sentence):
    write(sites / folder, split, "cat", 2)
    with pytest.raises(UserError, match=sentence):
        ProcessContext(run_of(sites, num_clients=3))


def test_images_outside_the_clients_folders_are_refused(sites):
    (sites / "notes.txt").touch()
    (sites / ".hidden").mkdir()
    ProcessContext(run_of(sites))
    Image.new("RGB", (32, 32)).save(sites / "cat.PNG")
    clear_data_cache()
    with pytest.raises(UserError, match=r"sites/cat.PNG belongs to no client; move it to its plac"):
        ProcessContext(run_of(sites))


@pytest.mark.parametrize(
    ("misfit", "sentence"),
    [
        ({"side": 24}, r"rome has images of 24x24 pixels in colours, but .*berlin of 32x32 pixels "
         "in colours; set image-size=N"),
        ({"mode": "L"}, "rome has images of 32x32 pixels in grey, .*; convert all to greyscale"),
    ],
)  # fmt: skip
def test_images_of_another_form_are_refused_as_the_server_refuses_the_host(sites, misfit, sentence):
    write(sites / "rome", "train", "owl", 2, **misfit)
    with pytest.raises(UserError, match=sentence):
        ProcessContext(run_of(sites, num_clients=3))


def test_folders_without_what_a_run_needs_are_refused(tmp_path):
    clear_data_cache()
    (tmp_path / "sites").mkdir()
    with pytest.raises(UserError, match=r"sites has no client folders; it must have CLIENT/train"):
        ProcessContext(run_of(tmp_path / "sites", num_clients=1))
    write(tmp_path / "sites" / "rome", "train", "cat", 2)
    with pytest.raises(UserError, match="have one class folder, 'cat', but must have two or more"):
        ProcessContext(run_of(tmp_path / "sites", num_clients=1))
    write(tmp_path / "sites" / "rome", "train", "dog", 2)
    with pytest.raises(UserError, match=r"no client folder in data-dir .*sites has images to test"):
        ProcessContext(run_of(tmp_path / "sites", num_clients=1))


def test_a_client_whose_name_is_no_utf_8_is_refused_by_name(sites):
    write(sites / os.fsdecode(b"caf\xe9"), "train", "owl", 2)
    with pytest.raises(UserError, match=r"a client in data-dir .*sites is called 'caf\\udce9', wh"):
        ProcessContext(run_of(sites, num_clients=3))


def test_labels_alone_have_no_folders():
    labels = np.zeros(4, dtype=np.int64)
    with pytest.raises(UserError, match="needs dataset 'images' with a folder for each client"):
        make_partition("folders", labels, labels, PartitionSpec(2), seed=0)
