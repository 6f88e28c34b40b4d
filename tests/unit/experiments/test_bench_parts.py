"""The parts of the benchmark, with tiny jobs: images, rounds, messages, memory, the plain loop."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedapp.core.errors import UserError
from fedapp.data.datasets import load_dataset
from fedapp.engines.in_process import InProcessGrid
from fedapp.experiments.bench import (
    engine,
    federated,
    machine,
    messages,
    method_cost,
    plain_loop,
    plan,
    scale,
    tax,
)
from fedapp.results.run_directory import RunDirectory

ROOT = Path(__file__).parents[3]
TINY = plan.Workload(clients=2, images=10, epochs=1, rounds=3, plain_seconds=0.2)


def test_the_images_are_a_data_set_whose_cache_goes_with_it(monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", "before")
    with machine.benchmark_images(23) as folder:
        data = load_dataset("cifar10", str(folder))
        assert data.train_images.shape == (23, 32, 32, 3)
        assert len(data.test_labels) == 10
        assert np.bincount(data.train_labels).min() >= 2
        cache = Path(os.environ["FEDAPP_CACHE"])
        assert list(cache.iterdir())
        assert folder.parent == cache.parent
    assert not cache.exists()
    assert os.environ["FEDAPP_CACHE"] == "before"


def test_the_first_round_is_left_out(monkeypatch):
    def run(project, values, resources):
        assert (values["eval-every"], values["partition"], resources.gpus) == (3, "iid", 0.0)
        directory = RunDirectory.create(values["output-dir"], values["run-name"], values)
        for number, seconds in enumerate((100.0, 4.0, 2.0), 1):
            directory.log_round({"round": number, "images": 40, "seconds": seconds})
        end = time.time() + 106
        os.utime(directory.metrics_path, (end, end))
        return 0

    config = federated.configuration(Path("x"), TINY, method="fedavg", model="cnn")
    found = federated.measured_run(ROOT, config, federated.resources("cpu"), run)
    assert found.speed() == federated.Speed(15.0, 3.0)
    assert found.first_round == pytest.approx(100, abs=10)
    with pytest.raises(UserError, match="run of fedavg with cnn did not complete"):
        federated.measured_run(ROOT, config, federated.resources("cpu"), lambda *_: 1)


def test_a_workload_has_images_of_its_own_that_go_with_the_run():
    seen = []

    def run(project, values, resources):
        seen.append((values["data-dir"], load_dataset("cifar10", values["data-dir"])))
        directory = RunDirectory.create(values["output-dir"], values["run-name"], values)
        directory.log_round({"round": 1})
        return 0

    federated.measured_workload(ROOT, TINY, federated.resources("cpu"), run, method="fedavg")
    ((folder, data),) = seen
    assert len(data.train_labels) == TINY.clients * TINY.images
    assert not Path(folder).exists()


def test_a_method_costs_something_in_a_real_run_and_a_misfit_is_explained(monkeypatch):
    row = method_cost.METHODS["fedavg"]
    monkeypatch.setattr(method_cost, "METHODS", {"fedavg": row, "fedgpt": row})
    tiny = plan.Plan(repeats=1, models=("cnn",), cost=replace(TINY, rounds=2))
    found = method_cost.measure_methods(ROOT, tiny)
    assert found["method_cost"].keys() == {"fedavg"}
    assert found["method_cost"]["fedavg"] > 0
    assert "method 'fedgpt' does not exist" in found["method_skipped"]["fedgpt"]


def test_only_methods_with_one_model_for_all_are_given_the_plans_model(monkeypatch):
    seen = []

    def refuse(*_, **changes):
        seen.append(changes)
        raise UserError("not now")

    rows = {name: method_cost.METHODS[name] for name in ("fedavg", "feddor")}
    monkeypatch.setattr(method_cost, "METHODS", rows)
    monkeypatch.setattr(method_cost, "measured_in_process", refuse)
    method_cost.measure_methods(ROOT, plan.Plan(repeats=1, models=("cnn",)))
    assert [changes.get("model") for changes in seen] == ["cnn", None]


@pytest.mark.parametrize("clients", [2, 3])
def test_messages_travel_and_give_the_model_back(clients):
    model = messages.random_model(0.01)
    assert sum(array.nbytes for array in model.values()) == 10_000
    strategy = messages.our_strategy([100, 101], clients, list(model))
    clock = messages.Clock()
    clock.start()
    grid = InProcessGrid({}, nodes=2)
    answer = messages.client
    grid.answer = lambda message: answer(message, grid.contexts[message.metadata.dst_node_id])
    record = messages.to_array_record(model)
    result = strategy.start(grid, record, 2, evaluate_fn=clock.end_of_round)
    messages._check(model, result.arrays)
    assert len(clock.seconds) == 2
    model["layer3"][0] += 1
    with pytest.raises(RuntimeError, match="not that model"):
        messages._check(model, result.arrays)


def test_the_message_app_is_one_that_flower_accepts_and_loads(tmp_path, monkeypatch):
    from flwr.cli.config_utils import load_and_validate
    from flwr.supercore.object_ref import load_app

    project = engine.write_message_app(tmp_path / "app", {"rounds": 2})
    config, _ = load_and_validate(project / "pyproject.toml")
    app = config["tool"]["flwr"]["app"]
    assert app["config"] == {"rounds": 2}
    monkeypatch.syspath_prepend(project)
    parts = app["components"]
    loaded = [load_app(parts[kind], RuntimeError) for kind in ("serverapp", "clientapp")]
    assert loaded == [messages.server, messages.client]


def test_messages_are_compared_with_stock_flower_by_size(monkeypatch):
    seconds = {False: {"1": [2.0, 4.0]}, True: {"1": [8.0]}}
    monkeypatch.setattr(engine, "run_messages", lambda plan, nodes, stock: seconds[stock])
    assert engine.measure_messages(plan.QUICK) == {
        "1": {"seconds": 3.0, "seconds_per_client": 0.3, "stock_seconds": 8.0, "ratio": 0.375}
    }


def test_startup_is_compared_with_its_baseline(monkeypatch):
    monkeypatch.setattr(engine, "_baseline_seconds", lambda statements: 2.0)
    monkeypatch.setattr(engine, "measured_workload", lambda *_, **__: federated.Rounds([], 6.0))
    found = engine.measure_startup(ROOT, 2)
    assert found == {
        "seconds": 6.0, "ray_seconds": 6.0, "superlink_seconds": 6.0, "baseline_seconds": 4.0,
        "ratio": 1.5,
    }  # fmt: skip


def test_a_baseline_that_fails_says_why():
    assert engine._baseline_seconds("start = time.perf_counter(); import json") < 10
    with pytest.raises(UserError, match="No module named 'gpt'"):
        engine._baseline_seconds("import gpt")


def test_aggregation_is_measured_beside_copying(monkeypatch):
    monkeypatch.setattr(engine, "_AGGREGATED_MEGABYTES", 1)
    monkeypatch.setattr(engine, "memory_bandwidth", lambda: 10.0)
    found = engine.measure_aggregation()
    assert found["add_traffic_ratio"] == pytest.approx(found["add"] * 5 / 10)
    assert machine.memory_bandwidth(megabytes=1, repeats=1) > 0


def test_peak_memory_is_that_of_the_processes_started_meanwhile():
    hold = "import time; kept = bytearray(60_000_000); time.sleep(0.6)"
    with machine.PeakMemory(0.05) as memory:
        subprocess.run([sys.executable, "-c", hold], check=True)
    assert memory.megabytes is not None
    assert 60 < memory.megabytes < 200
    assert not [name for name in os.environ if name.startswith("FEDAPP_BENCH")]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report shared pages")
def test_memory_that_forked_processes_share_counts_once():
    fork = "import os, time; held = b'x' * 60_000_000; os.fork(); os.fork(); time.sleep(1.5)"
    with machine.PeakMemory(0.05) as memory:
        subprocess.run([sys.executable, "-c", fork + "; held"], check=True)
    assert memory.megabytes is not None
    assert 60 < memory.megabytes < 110  # four processes that count it each have 240


def test_a_point_of_the_scale_part_is_a_run_with_that_cohort(monkeypatch):
    def run(project, workload, resources, participation, **changes):
        assert (workload.clients, workload.images, participation) == (20, 2, 0.5)
        assert resources.workers == 1
        return federated.Rounds([{"images": 100, "seconds": s} for s in (9.0, 2.0)], 0.0)

    monkeypatch.setattr(scale, "measured_workload", run)
    point = plan.Point(20, 10, workers=1, images=2)
    found = scale.measure_scale(ROOT, replace(plan.QUICK, scale=(point,), job=point))
    assert found["scale"][0]["seconds"] == 2.0
    assert found["job"]["fits_per_second"] == 5.0


def test_the_best_layout_of_the_plain_loop_counts(monkeypatch):
    monkeypatch.setattr(plain_loop, "cores", lambda: 4)
    assert plain_loop.layouts("cpu") == [plain_loop.Layout(1, 4), plain_loop.Layout(4, 1)]
    assert [layout.device for layout in plain_loop.layouts("cuda")] == ["cuda", "cuda"]
    assert all(layout.tuned for layout in plain_loop.layouts("cpu", tuned=True))
    rates = {1: 300.0, 4: 500.0}
    monkeypatch.setattr(
        tax, "plain_images_per_second", lambda model, layout, *_: rates[layout.processes]
    )
    assert tax.best_plain("cnn", TINY, "cpu") == 500.0
    monkeypatch.setattr(plain_loop, "cores", lambda: 1)
    assert plain_loop.layouts("cpu") == [plain_loop.Layout(1, 1)]


def test_a_group_is_as_fast_as_equally_many_images_of_each_architecture(monkeypatch):
    rates = {"tiny/fedavgcnn": 100.0, "tiny/resnet4": 300.0}
    monkeypatch.setattr(tax, "plain_images_per_second", lambda name, *_: rates[name])
    assert tax.best_plain("tiny", TINY, "cpu") == 150.0


@pytest.mark.parametrize(("model", "tuned"), [("cnn", False), ("tiny/resnet4", True)])
def test_a_real_plain_loop_trains_from_its_signal_on_for_its_time(model, tuned):
    signals = []
    layout = plain_loop.Layout(1, 1, tuned=tuned)
    rate = plain_loop.train_plainly(model, 4, layout, 0.3, lambda: signals.append(1))
    assert signals == [1]
    assert rate > 1


def test_a_process_that_fails_is_reported():
    with pytest.raises(RuntimeError, match=r"the plain loop failed: .*gpt"):
        plain_loop.plain_images_per_second("gpt", plain_loop.Layout(1, 1), 4, 0.1)
