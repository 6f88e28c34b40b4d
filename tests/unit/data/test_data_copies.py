"""Hosts that each have a copy of the data: equal ones serve, others are refused before round 1."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import settings
from PIL import Image

from fedapp import server_app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.interface.runs import load_run
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process import context as process_module
from fedapp.runtime.process import federated_data
from fedapp.runtime.process.earlier_run import reopened
from fedapp.runtime.process.run_data import data_hash, load_partition
from fedapp.runtime.server.preflight import wait_for_nodes

CLASSES = ("cat", "dog")


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def copies(tmp_path) -> dict[str, Path]:
    """The server's folder of images and those of two hosts, all equal."""
    first, *others = (tmp_path / name for name in ("server", "first", "second"))
    for split, count in (("train", 12), ("test", 4)):
        for label, name in enumerate(CLASSES):
            (first / split / name).mkdir(parents=True)
            for number in range(count):
                paint(first / split / name / f"{number}.png", 100 * label + number)
    for other in others:
        shutil.copytree(first, other)
    return {path.name: path for path in (first, *others)}


def paint(path: Path, value: int) -> None:
    Image.new("RGB", (32, 32), (value, 255 - value, 7)).save(path)


def train(copies: dict[str, Path], tmp_path: Path, **changes) -> RunDirectory:
    """Run one round on two hosts in this process; raises UserError as the ServerApp does."""
    chosen = {
        "dataset": "images", "partition": "iid", "num_clients": 4, "num_rounds": 1,
        "output_dir": str(tmp_path / "runs"), "run_name": "copies",
    }  # fmt: skip
    values = settings(**(chosen | changes))
    grid = InProcessGrid(values, 2)
    for context, host in zip(grid.contexts.values(), ("first", "second"), strict=True):
        context.node_config["data-dir"] = str(copies[host])
    server_app.run(grid, values, str(copies["server"]), 0.0)
    return RunDirectory.load(tmp_path / "runs" / "copies")


def test_equal_copies_at_other_places_train(copies, tmp_path):
    assert train(copies, tmp_path).summary()["status"] == "completed"


@pytest.mark.parametrize("pooled", [False, True])
def test_a_host_with_one_image_more_is_refused_by_name(copies, tmp_path, pooled):
    paint(copies["second"] / "train" / "cat" / "new.png", 50)
    with pytest.raises(UserError, match=r"node 101 \(partition 1 .*another set of images") as error:
        train(copies, tmp_path, pool_data=pooled)
    assert "so copy the server's data folder there" in str(error.value)
    assert "numpy" in str(error.value)


@pytest.mark.parametrize("changed", ["train/cat/3.png", "test/dog/1.png"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_host_with_another_image_under_the_same_name_is_refused(
    copies, tmp_path, pooled, changed
):
    paint(copies["first"] / changed, 200)
    with pytest.raises(UserError, match=r"node 100 .*another set of images"):
        train(copies, tmp_path, pool_data=pooled)


def test_a_host_with_the_same_images_in_another_order_is_refused(copies, tmp_path):
    folder = copies["first"] / "train" / "cat"
    (folder / "2.png").rename(folder / "x.png")
    with pytest.raises(UserError, match=r"node 100 .*another set of images"):
        train(copies, tmp_path)


def test_a_run_is_measured_by_the_images_of_now_and_not_by_those_read_before(copies, tmp_path):
    run = train(copies, tmp_path)
    config = parse_config({**run.config(), "data-dir": str(copies["server"])})
    assert reopened(run, config).data.hash == run.partition()["data_hash"]
    paint(copies["server"] / "test" / "dog" / "1.png", 200)
    with pytest.raises(UserError, match="the data, or their division among the clients, differ"):
        load_run(run.path).personalise(data_dir=str(copies["server"]))


def test_the_hash_is_of_labels_draw_and_statistics():
    config = parse_config(settings())
    data, partition = load_partition(config)
    assert data_hash(data, partition) == data_hash(*load_partition(config))
    moved = [partition.train[0][1:], np.append(partition.train[1], partition.train[0][0])]
    others = [
        (replace(data, train_labels=np.roll(data.train_labels, 1)), partition),
        (replace(data, test_labels=np.roll(data.test_labels, 1)), partition),
        (data, replace(partition, train=[*moved, *partition.train[2:]])),
        (data, replace(partition, test=partition.test[::-1])),
        (replace(data, mean=(data.mean[0] + 1e-5,)), partition),
        (replace(data, std=(data.std[0] + 1e-5,)), partition),
        (replace(data, digest="other"), partition),
    ]
    assert len({data_hash(*other) for other in [(data, partition), *others]}) == 8
    rounded = replace(data, mean=(data.mean[0] + 1e-12,))
    assert data_hash(rounded, partition) == data_hash(data, partition)


def test_nodes_of_one_process_compute_it_once(monkeypatch):
    calls = []
    monkeypatch.setattr(federated_data, "data_hash", lambda *given: calls.append(given) or "hash")
    process_module.close_process()
    try:
        wait_for_nodes(InProcessGrid(settings(), 5), 10, {}, 5)
    finally:
        process_module.close_process()
    assert len(calls) == 1
