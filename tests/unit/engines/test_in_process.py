"""A run without Flower processes: a whole run directory, resumed to the same bits."""

import json
from pathlib import Path

import numpy as np
import pytest
from in_process import ROOT, settings
from PIL import Image
from safetensors.numpy import load_file

from fedapp.core.errors import UserError
from fedapp.core.rng import sample_clients
from fedapp.engines import in_process
from fedapp.engines.in_process import InProcessGrid, run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.evaluation import at_chance


def train(folder: Path, name: str, nodes: int = 1, **changes) -> RunDirectory:
    overrides = settings(output_dir=str(folder), run_name=name, checkpoint_every=1, **changes)
    assert run_in_process(ROOT, overrides, Resources(nodes, 1)) == 0
    return RunDirectory.load(folder / name)


def model(run: RunDirectory) -> dict[str, np.ndarray]:
    return load_file(run.path / "model.safetensors")


@pytest.mark.parametrize("method", ["fedavg", "feddr+"])
def test_a_run_that_diverges_before_its_last_round_says_so(tmp_path, method):
    overrides = settings(
        output_dir=str(tmp_path), run_name="x", method=method, lr=1e9, num_rounds=9
    )
    assert run_in_process(ROOT, overrides, Resources()) == 1
    summary = RunDirectory.load(tmp_path / "x").summary()
    assert (summary["status"], summary["diverged"]) == ("failed", True)
    assert summary["rounds"] < 9


def test_interrupted_and_resumed_is_uninterrupted_bit_for_bit(tmp_path):
    whole = train(tmp_path, "whole", num_rounds=2, method="feddr+")
    train(tmp_path, "half", num_rounds=1, method="feddr+")
    half = train(
        tmp_path, "half", nodes=3, num_rounds=2, method="feddr+", resume=str(tmp_path / "half")
    )
    for name, array in model(whole).items():
        np.testing.assert_array_equal(array, model(half)[name], err_msg=name)
    assert [row["round"] for row in half.rounds()] == [1, 2]
    assert half.summary()["status"] == "completed"


@pytest.mark.parametrize(
    ("method", "changes", "passes"),
    [
        ("fedavg", {}, 2),
        ("fedrep", {}, 3),  # the head for two epochs, then the body for one
        ("fedavg", {"drop_last": True, "batch_size": 32}, 2),
    ],
)
def test_a_rounds_images_are_those_that_were_trained_on(tmp_path, method, changes, passes):
    run = train(tmp_path, "run", method=method, local_epochs=2, num_rounds=1, **changes)
    partition = json.loads((run.path / "partition.json").read_text())
    examples = [sum(counts) for counts in partition["train_counts"]]
    whole = [n - n % 32 if changes else n for n in examples]
    assert not changes or whole != examples
    cohort = sample_clients(0, 1, len(examples), 0.5)
    images = passes * sum(whole[client] for client in cohort)
    assert [row["images"] for row in run.rounds()] == [images]
    summary = run.summary()
    assert summary["images_per_second"] == pytest.approx(images / summary["seconds"])


def test_a_rounds_time_is_waiting_for_clients_tests_and_the_server(tmp_path):
    run = train(tmp_path, "run", num_rounds=2)
    for row in run.rounds():
        assert 0 < row["slowest_seconds"] <= row["wait_seconds"]  # one client after the other
        assert row["slowest_client"] in sample_clients(0, row["round"], 10, 0.5)
        assert row["test_seconds"] > 0
        assert row["wait_seconds"] + row["test_seconds"] < row["seconds"]
    waiting = sum(row["wait_seconds"] for row in run.rounds())
    assert run.summary()["wait_seconds"] == pytest.approx(waiting)


def test_a_mistake_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="'metod' does not exist; did you mean 'method'"):
        run_in_process(ROOT, {"metod": "fedavg"}, Resources())


def test_own_images_are_no_matter_for_a_simulation():
    own = {"dataset": "images", "partition": "own", "classes": "cat dog", "num-clients": 4}
    with pytest.raises(UserError, match=r"partition is 'own': .* all 4 clients would have those"):
        run_in_process(ROOT, settings(**own), Resources())


def test_one_process_has_no_workers_and_without_a_share_no_gpu(monkeypatch):
    with pytest.raises(UserError, match="4 workers are asked for, but the engine in-process"):
        run_in_process(ROOT, {}, Resources(workers=4))
    with pytest.raises(UserError, match=r"--gpus is 0.5, but this machine has no GPU"):
        run_in_process(ROOT, {}, Resources(gpus=0.5))
    asked = []
    monkeypatch.setattr(in_process, "train", lambda grid, values, *_: asked.append(values))
    assert run_in_process(ROOT, settings(), Resources(gpus=0.0)) == 0
    assert run_in_process(ROOT, settings(), Resources()) == 0
    assert [values["device"] for values in asked] == ["cpu", "auto"]


@pytest.mark.parametrize(
    ("method", "lr", "chance"),
    [("fedavg", 1e-9, True), ("fedavg", 0.05, False), ("local", 1e-9, False)],
)
def test_a_run_that_ends_at_chance_says_so(tmp_path, method, lr, chance):
    summary = train(tmp_path, "run", method=method, lr=lr).summary()
    assert (summary["status"], summary["at_chance"]) == ("completed", chance)
    assert summary["reason"] == ("the final accuracy is no better than chance" if chance else "")


def test_chance_is_the_commonest_class_and_some_luck():
    labels = np.repeat([0, 1, 2], [5000, 3000, 2000])
    assert at_chance(0.5, labels)
    assert at_chance(0.509, labels)
    assert not at_chance(0.511, labels)
    assert at_chance(0.1, np.arange(10_000) % 10)
    assert not at_chance(0.11, np.arange(10_000) % 10)


def test_a_failing_run_says_so(tmp_path, capsys):
    overrides = settings(method="fedavg", output_dir=str(tmp_path), run_name="nan", lr=1e9)
    assert run_in_process(ROOT, overrides, Resources()) == 1
    assert "fedapp: round 1 has 0 usable updates" in capsys.readouterr().out
    assert RunDirectory.load(tmp_path / "nan").summary()["status"] == "failed"


def test_an_exception_in_a_handler_is_an_error_reply():
    grid = InProcessGrid(settings())
    from flwr.app import Message, RecordDict

    replies = grid.send_and_receive(
        [Message(RecordDict(), dst_node_id=100, message_type="train")], timeout=1
    )
    assert replies[0].has_error()


def test_images_that_changed_since_the_last_run_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))

    def add_images(count):
        for part in ("train", "test"):
            for label, shade in (("a", 0), ("b", 255)):
                folder = tmp_path / "photos" / part / label
                folder.mkdir(parents=True, exist_ok=True)
                for number in range(count):
                    Image.new("L", (8, 8), shade).save(folder / f"{number}.png")

    keys = {"dataset": "images", "data_dir": str(tmp_path / "photos"), "num_clients": 2}
    keys |= {"partition": "iid", "num_rounds": 1, "method": "fedavg"}
    found = []
    for count in (20, 30):
        add_images(count)
        counts = train(tmp_path, f"of-{count}", **keys).partition()["train_counts"]
        found.append(int(np.sum(counts)))
    assert found == [40, 60]
