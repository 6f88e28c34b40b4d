"""The benchmark: its ratios from given speeds, its images, its report, a tiny real plain loop."""

import importlib.metadata
import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedapp import bench, cli, plain_loop
from fedapp.data.datasets import load_dataset
from fedapp.errors import UserError
from fedapp.results.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
TINY = bench.Workload(clients=2, images=10, epochs=1, rounds=3, repeats=3, plain_seconds=0.2)
SECONDS = {"fedavg": 2.0, "fedntd": 2.5, "feddr+": 3.0}


@pytest.fixture
def speeds(monkeypatch):
    """Replace what is measured: the second repeat is disturbed; returns the order of measuring."""
    order = []

    def plain(model, workload, device):
        order.append((device, "plain"))
        return 1000.0

    def federated(project, data_dir, model, method, workload, device):
        order.append((device, method))
        disturbed = 5.0 if 4 < len(order) <= 8 and method == "fedavg" else 1.0
        seconds = SECONDS[method] * disturbed
        return bench.RoundSpeed(1800.0 / seconds, seconds)

    monkeypatch.setattr(bench, "best_plain", plain)
    monkeypatch.setattr(bench, "federated_speed", federated)
    monkeypatch.setattr(bench, "count_gpus", lambda: 0)
    return order


def test_ratios_are_medians_of_repeats_measured_in_turn(speeds):
    found = bench.bench(ROOT, ["cnn"], TINY)
    assert found["fl_tax"] == {"cnn": 0.9}
    assert found["method_cost"] == {"cnn": {"fedavg": 1.0, "fedntd": 1.25, "feddr+": 1.5}}
    assert speeds == [("cpu", name) for name in ("plain", *bench.METHODS)] * 3
    assert json.loads(json.dumps(found)) == found
    assert found["environment"]["torch"] == importlib.metadata.version("torch")


def test_the_gpu_is_measured_where_there_is_one_and_skipped_in_one_line_elsewhere(
    speeds, monkeypatch
):
    text = bench.markdown(bench.bench(ROOT, ["cnn"], TINY))
    assert "GPU: skipped: no GPU was found." in text.splitlines()
    assert "| cnn | 0.90 | 1.25 | 1.50 |" in text.splitlines()
    monkeypatch.setattr(bench, "count_gpus", lambda: 1)
    found = bench.bench(ROOT, ["cnn"], TINY)
    assert found["gpu"]["fl_tax"] == {"cnn": 0.9}
    assert ("cuda", "feddr+") in speeds
    assert bench.markdown(found).splitlines().count("| cnn | 0.90 | 1.25 | 1.50 |") == 2


def test_every_row_of_the_table_has_all_columns(speeds):
    lines = bench.markdown(bench.bench(ROOT, ["cnn", "mobilenet"], TINY)).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {5}


def test_an_unknown_model_is_refused_before_anything_is_measured(speeds):
    with pytest.raises(UserError, match="model 'gpt' is unknown; choose from cnn"):
        bench.bench(ROOT, ["cnn", "gpt"], TINY)
    assert not speeds


def test_the_command_prints_json_or_markdown(speeds):
    done = CliRunner().invoke(cli.app, ["bench", "--quick", "--json", "--app", str(ROOT)])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["workload"]["repeats"] == 1
    assert found["fl_tax"]["cnn"] == 0.9
    done = CliRunner().invoke(cli.app, ["bench", "--quick", "--app", str(ROOT)])
    assert done.stdout.startswith("## CPU")


def test_the_images_are_a_data_set_whose_cache_goes_with_it(monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", "before")
    with bench.benchmark_images(TINY) as folder:
        data = load_dataset("images", str(folder))
        assert data.train_images.shape == (20, 32, 32, 3)
        assert len(data.test_labels) == 10
        assert np.bincount(data.train_labels).tolist() == [2] * 10
        cache = Path(os.environ["FEDAPP_CACHE"])
        assert list(cache.iterdir())
        assert folder.parent == cache.parent
    assert not cache.exists()
    assert os.environ["FEDAPP_CACHE"] == "before"


def test_the_first_round_is_left_out(monkeypatch):
    def run(project, values, resources):
        assert (values["eval-every"], values["partition"], resources.gpus) == (3, "iid", 0.0)
        directory = RunDirectory.create(values["output-dir"], values["run-name"], values)
        for seconds in (100.0, 4.0, 2.0):
            directory.log_round({"images": 40, "seconds": seconds})
        return 0

    monkeypatch.setattr(bench, "run", run)
    speed = bench.federated_speed(ROOT, Path("x"), "cnn", "fedavg", TINY, "cpu")
    assert speed == bench.RoundSpeed(15.0, 3.0)
    monkeypatch.setattr(bench, "run", lambda *_: 1)
    with pytest.raises(UserError, match="run of fedavg with cnn did not complete"):
        bench.federated_speed(ROOT, Path("x"), "cnn", "fedavg", TINY, "cpu")


def test_the_best_layout_of_the_plain_loop_counts(monkeypatch):
    monkeypatch.setattr(plain_loop, "cores", lambda: 4)
    assert plain_loop.layouts("cpu") == [plain_loop.Layout(1, 4), plain_loop.Layout(4, 1)]
    assert [layout.device for layout in plain_loop.layouts("cuda")] == ["cuda", "cuda"]
    rates = {1: 300.0, 4: 500.0}
    monkeypatch.setattr(
        bench, "plain_images_per_second", lambda model, layout, *_: rates[layout.processes]
    )
    assert bench.best_plain("cnn", TINY, "cpu") == 500.0
    monkeypatch.setattr(plain_loop, "cores", lambda: 1)
    assert plain_loop.layouts("cpu") == [plain_loop.Layout(1, 1)]


def test_a_real_plain_loop_trains_from_its_signal_on_for_its_time():
    signals = []
    rate = plain_loop.train_plainly("cnn", 4, "cpu", 0.3, lambda: signals.append(1))
    assert signals == [1]
    assert rate > 1


def test_a_process_that_fails_is_reported():
    with pytest.raises(RuntimeError, match=r"the plain loop failed: .*gpt"):
        plain_loop.plain_images_per_second("gpt", plain_loop.Layout(1, 1), 4, 0.1)
