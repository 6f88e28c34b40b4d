"""The benchmark as a whole: ratios from given speeds, its report, its command."""

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.core.errors import UserError
from fedapp.engines import launch
from fedapp.experiments.bench import gpu, plan, suite, tables, tax
from fedapp.experiments.bench.federated import Rounds, Speed
from fedapp.experiments.bench.superlink import run_with_superlink

ROOT = Path(__file__).parents[3]
METHODS = ("fedavg", "fedntd", "feddr+")
SECONDS = {"fedavg": 2.0, "fedntd": 2.5, "feddr+": 3.0, "feddor": 4.0}
TINY = plan.Plan(
    models=("cnn",), methods=METHODS, tax=plan.Workload(clients=2, images=10, plain_seconds=0.2),
    heavy=plan.Workload(clients=2, images=10), cost=plan.Workload(clients=2, images=10),
)  # fmt: skip


@pytest.fixture
def speeds(monkeypatch):
    """Replace what is measured: the second repeat is disturbed; returns the order of measuring."""
    order = []

    def plain(model, workload, device, tuned=False):
        order.append((device, "tuned" if tuned else "plain"))
        return 1200.0 if tuned else 1000.0

    def federated(project, model, method, workload, device, simulate=run_with_superlink):
        order.append((device, "workers" if simulate is launch.run else method))
        disturbed = 5.0 if 6 < len(order) <= 12 and method == "fedavg" else 1.0
        seconds = SECONDS[method] * disturbed
        return Speed(1800.0 / seconds, seconds)

    monkeypatch.setattr(tax, "best_plain", plain)
    monkeypatch.setattr(tax, "federated_speed", federated)
    monkeypatch.setattr(gpu, "gpu_names", lambda: [])
    return order


def test_ratios_are_medians_of_repeats_measured_in_turn(speeds, capsys):
    found = suite.bench(ROOT, TINY, ["tax"])
    assert found["fl_tax"] == {"cnn": 0.9}
    assert found["fl_tax_by_method"] == {"cnn": {"fedavg": 0.9, "fedntd": 0.72, "feddr+": 0.6}}
    assert found["round_cost"] == {"cnn": {"fedavg": 1.0, "fedntd": 1.25, "feddr+": 1.5}}
    assert speeds == [("cpu", name) for name in ("plain", "tuned", "workers", *METHODS)] * 3
    assert found["fl_tax_tuned"] == {"cnn": 0.75}
    assert (found["fl_tax_workers"], found["fl_tax_workers_tuned"]) == ({"cnn": 0.9}, {"cnn": 0.75})
    said = capsys.readouterr().err.splitlines()  # what was found so far survives an interruption
    one = (
        "bench: cpu cnn, repeat 3 of 3: 1000 images/s, of which fedavg 0.9, fedntd 0.72, feddr+ 0.6"
    )
    assert said[-1] == one
    assert json.loads(json.dumps(found)).keys() == found.keys()
    assert found["environment"]["torch"] == importlib.metadata.version("torch")


def test_only_the_first_method_of_a_large_model_is_measured_in_every_repeat(speeds):
    found = suite.bench(ROOT, replace(TINY, models=("mobilenet",)), ["tax"])
    once = [("cpu", name) for name in ("plain", "tuned", "workers", *METHODS)]
    assert speeds == once + [("cpu", name) for name in ("plain", "tuned", "workers", "fedavg")] * 2
    assert found["fl_tax_by_method"] == {
        "mobilenet": {"fedavg": 0.9, "fedntd": 0.72, "feddr+": 0.6}
    }
    assert found["round_cost"]["mobilenet"]["feddr+"] == 1.5


def test_the_gpu_is_measured_where_there_is_one_and_skipped_in_one_line_elsewhere(
    speeds, monkeypatch
):
    text = tables.markdown(suite.bench(ROOT, TINY, ["gpu"]))
    assert "GPU: skipped: no GPU was found." in text.splitlines()
    monkeypatch.setattr(gpu, "gpu_names", lambda: ["0"])
    monkeypatch.setattr(gpu, "measure_precisions", lambda *_: {"precision_cost": {"bf16": 0.5}})
    monkeypatch.setattr(gpu, "measured_workload", job := PaperJob())
    monkeypatch.setattr(gpu, "measure_memory", lambda *_: {"growth": 1.0, "flat": True})
    found = suite.bench(ROOT, TINY, ["gpu"])
    assert found["gpu"]["fl_tax"] == {"cnn": 0.9}
    assert ("cuda", "feddr+") in speeds
    lines = tables.markdown(found).splitlines()
    assert "| cnn | 0.9 | 0.72 | 0.6 |" in lines
    assert {"- bf16: 0.5", "- flat: True", "- seconds: 1.5", "- minutes: 8"} <= set(lines)
    assert (job.epochs, job.model, job.device) == (3, "mobilenet", "cuda")


class PaperJob:
    """A run of rounds of 1.5 seconds; keeps what it was asked for."""

    def __call__(self, project, workload, allowed, *, model, method, device):
        self.epochs, self.model, self.device = workload.epochs, model, device
        return Rounds([{"images": 15_000, "seconds": seconds} for seconds in (9.0, 1.5, 1.5)], 20.0)


def test_memory_that_grows_is_told_from_memory_that_is_flat():
    assert gpu.growth_of([0, 0, 100, 200, 200, 200]) == 1.0
    assert gpu.growth_of([0, 100, 100, 200, 300]) == 3.0
    assert gpu.growth_of([]) == 1.0


def test_every_row_of_a_table_has_all_columns(speeds):
    found = suite.bench(ROOT, replace(TINY, models=("cnn", "mobilenet")), ["tax"])
    rows = [line for line in tables.markdown(found).splitlines() if line.startswith("|")]
    assert len(rows) == 8
    assert {line.count("|") for line in rows} == {5}


def test_methods_with_models_of_their_own_are_measured_on_groups(speeds):
    chosen = replace(TINY, repeats=1, models=("cnn", "tiny"), methods=("fedavg", "feddor"))
    found = suite.bench(ROOT, chosen, ["tax"])
    assert found["fl_tax_by_method"] == {"cnn": {"fedavg": 0.9}, "tiny": {"feddor": 0.45}}
    assert found["fl_tax"]["tiny"] == 0.45
    assert {"| cnn | 0.9 | - |", "| tiny | - | 0.45 |"} <= set(tables.markdown(found).splitlines())
    assert tables.draw(found).axes


def test_a_method_that_is_not_in_the_table_is_left_out_and_named(speeds):
    found = suite.bench(ROOT, replace(TINY, methods=("fedavg", "fedgpt")), ["tax"])
    assert found["fl_tax_by_method"]["cnn"].keys() == {"fedavg"}
    assert found["skipped_methods"] == ["fedgpt"]


def test_an_unknown_model_or_part_is_refused_before_anything_is_measured(speeds):
    with pytest.raises(UserError, match="model 'gpt' does not exist; there is cnn"):
        suite.bench(ROOT, replace(TINY, models=("cnn", "gpt")))
    with pytest.raises(UserError, match="part 'speed' does not exist; did you mean 'scale'"):
        suite.bench(ROOT, TINY, ["speed"])
    assert not speeds


def test_the_command_prints_json_or_markdown_and_leaves_files(speeds, tmp_path):
    arguments = ["bench", "--quick", "--part", "tax", "--part", "gpu", "--app", str(ROOT)]
    arguments += ["--output-dir", str(tmp_path / "out")]
    done = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["plan"]["repeats"] == 1
    assert found["fl_tax"] == {"cnn": 0.9}
    assert json.loads((tmp_path / "out/bench.json").read_text()) == found
    assert (tmp_path / "out/bench.png").read_bytes().startswith(b"\x89PNG")
    again = CliRunner().invoke(cli.app, arguments)
    assert "has the results of another benchmark" in str(again.exception)
    assert json.loads((tmp_path / "out/bench.json").read_text()) == found
    arguments[-1] = str(tmp_path / "second")
    assert CliRunner().invoke(cli.app, arguments).stdout.startswith("## FL tax")


def test_all_parts_have_their_tables_and_panels():
    point = {"clients": 100, "cohort": 10, "workers": 2, "seconds": 1.5, "peak_megabytes": None}
    found = {
        "fl_tax_by_method": {"cnn": {"fedavg": 0.9}}, "round_cost": {"cnn": {"fedavg": 1.0}},
        "method_cost": {"fedavg": 1.0, "moon": 2.7}, "method_skipped": {"x": "it needs y"},
        "messages": {"0.001": {"seconds": 0.1, "seconds_per_client": 0.01, "stock_seconds": 0.2,
                               "ratio": 0.5}},
        "startup": {"ratio": 1.2}, "aggregation": {"add": 0.5}, "scale": [point],
        "job": {"fits_per_second": 20.0}, "gpu": "skipped", "environment": {"cores": 2},
    }  # fmt: skip
    text = tables.markdown(found)
    for line in (
        "| moon | 2.7 |",
        "- x was left out: it needs y",
        "| 0.001 | 0.1 | 0.01 | 0.2 | 0.5 |",
        "| 100 | 10 | 2 | 1.5 | - |",
        "- fits per second: 20",
        "- cores: 2",
    ):
        assert line in text.splitlines()
    assert len(tables.draw(found).axes) == 4
