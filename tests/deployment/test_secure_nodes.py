"""Secure aggregation on real SuperNodes: the bits of plain calls without it, or their noise."""

import json
import shutil

import numpy as np
import pytest
from in_process import assert_same, federate, settings
from PIL import Image

from deployment.federation import WARM
from fedapp.config.resolve import parse_config
from fedapp.results import checkpoint

KEYS = {
    "method": "feddr+", "num_rounds": 1, "num_clients": 3, "partition": "iid", "shards": 5,
    "participation": 1.0, "local_epochs": 1,
}  # fmt: skip


HIDDEN = {**KEYS, "secure_aggregation": "pairwise"}
PRIVATE = {
    "method": "feddr+", "num_rounds": 1, "num_clients": 3, "participation": 1.0, "local_epochs": 1,
    "secure_aggregation": "pairwise", "weights": "uniform", "dp_clip": 0.01, "dataset": "images",
    "partition": "own", "classes": "cat dog", "shards": 5,
}  # fmt: skip


def final(made, name, **keys):
    """Return the last checkpoint of a run."""
    run = parse_config(settings(batch_size="auto", **keys))
    return checkpoint.load(made.directory(name), run.fingerprint())


def own_images(folder):
    """Give three nodes and the server images of their own; returns the nodes' folders."""
    folders = [folder / name / "train" for name in "012"] + [folder / "server" / "test"]
    for number, images in enumerate(folders):
        for name in ("cat", "dog"):
            (images / name).mkdir(parents=True)
            for index in range(4):
                pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(images / name / f"{index}.png")
    return [images.parent for images in folders[:3]]


def check_noise(made, configs, folder):
    """Let nodes add noise and count it; assert that it has the counted deviation."""
    images = own_images(folder)
    for number, config in enumerate(configs):
        limit = f"privacy-epsilon=1000.0 privacy-ledger='{folder}/{number}.json'"
        made.restart_node(number, 3, f"{config} data-dir='{images[number]}' {limit}")
    keys = {**PRIVATE, "data_dir": str(folder / "server")}
    log = made.run("private", **keys, dp_noise=3.0, checkpoint_every=1)
    assert made.status() == "finished:completed", log
    arrays = final(made, "private", **keys, dp_noise=3.0).arrays
    places = [{"data-dir": str(folder)} for folder in images]
    quiet, _, _ = federate(settings(batch_size="auto", **keys), nodes=3, node_configs=places)
    noise = np.concatenate([(arrays[name] - array).ravel() for name, array in quiet.items()])
    assert np.std(noise) == pytest.approx(3.0 * 0.01 / 3 * np.sqrt(3 / 2), rel=0.02)
    (row,) = made.rows("private")
    assert (row["clients"], row["train_loss"], row["images"]) == (3, None, 0)
    for number in range(3):
        spent = json.loads((folder / f"{number}.json").read_text())
        assert spent == {"epsilon": row["epsilon"], "delta": 1e-5, "rounds": {"3.0": 1}}


def test_three_nodes_hide_their_updates_and_change_no_bit(new_federation, tmp_path):
    """One node starts a process for each message, so its secrets lie in Flower's context.

    They sign their keys with the keys by which the SuperLink knows them.
    """
    made, peers = new_federation(3), tmp_path / "peers"
    peers.mkdir()
    for number in range(3):
        shutil.copy(made.certificates / f"node-{number}.pub", peers)
    configs = [
        f"{worker} secure-key='{made.certificates / f'node-{number}'}' secure-peers='{peers}'"
        for number, worker in enumerate(("", WARM, WARM))
    ]
    made.start_superlink()
    made.register(0, 1, 2)
    for number, config in enumerate(configs):
        made.start_node(number, 3, config)
    log = made.run("secure", **HIDDEN, checkpoint_every=1)
    assert made.status() == "finished:completed", log
    saved = final(made, "secure", **HIDDEN)
    arrays, strategy, _ = federate(settings(batch_size="auto", **KEYS), nodes=1)
    assert_same(arrays, {name: saved.arrays[name] for name in arrays})
    expected = strategy.save()
    assert_same(expected, {name: saved.strategy[name] for name in expected})
    assert [row["clients"] for row in made.rows("secure")] == [3]
    assert made.rows("secure")[0]["bytes_up"] > 2 * sum(a.nbytes for a in arrays.values()) * 3
    check_noise(made, configs, tmp_path)
