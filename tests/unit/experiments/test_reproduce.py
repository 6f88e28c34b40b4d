"""Reproducing a table: what would run, that nothing runs twice, and what comes out."""

import csv
import io
import json

import pytest
from paper_cells import cell, copy_of
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines import launch
from fedapp.experiments.papers import plan as planning
from fedapp.experiments.papers import reproduce as reproducing
from fedapp.experiments.papers.plan import Request, runs_of
from fedapp.experiments.papers.reproduce import (
    check_folder,
    earlier_results,
    finished,
    result,
    run_cell,
    write_results,
)
from fedapp.experiments.papers.results_page import results_html
from fedapp.results.run_directory import RunDirectory


@pytest.fixture
def simulated(monkeypatch):
    """Replace the simulation by one that writes the run directory of a finished run at once."""
    runs = []

    def run(project, overrides, resources):
        runs.append(overrides)
        config = parse_config(overrides)
        made = RunDirectory.create(
            config.output_dir, config.run_name, config.flat(), resume=bool(config.resume)
        )
        status = run.statuses.get(config.seed, "completed")
        made.write_summary(
            {
                **{"status": status, "diverged": status == "failed"},
                "rounds": config.num_rounds if status == "completed" else 1,
                "accuracy_final": 0.40 + 0.02 * config.seed if status == "completed" else None,
                "accuracy_best": 0.50,
                "best_round": 7 + config.seed,
                "seconds": 2.0,
                "device": "cpu",
                "forgetting": 0.5,
                "at_chance": config.seed == 1,
            }
        )
        return 0 if status == "completed" else 1

    run.statuses = {}
    run.calls = runs
    monkeypatch.setattr(launch, "run", run)
    return run


def reproduce(*arguments: str):
    return CliRunner().invoke(app, ["reproduce", "fedntd", "table1-sharding", *arguments])


def test_runs_are_compared_with_the_published_number(simulated, tmp_path):
    request = Request(tmp_path, scale=0.5, seeds=(0, 1, 2))
    row = run_cell(cell(), request, tmp_path)
    assert [run["num-rounds"] for run in simulated.calls] == [100] * 3
    assert (row["published mean"], row["mean"]) == (40.14, pytest.approx(42.0))
    assert row["std"] == pytest.approx(2.0)  # of 40, 42 and 44
    assert row["difference"] == pytest.approx(42.0 - 40.14)
    assert (row["seeds"], row["best round"], row["at-chance seeds"]) == ("0 1 2", "7 8 9", "1")
    assert (row["changes"], row["seconds"]) == ("rounds x 0.5", 6.0)


def test_a_metric_other_than_accuracy_is_read_from_the_summary(simulated, tmp_path):
    found = cell("fedntd", "table1-sharding-forgetting", "fedavg cifar10 s=2")
    row = run_cell(found, Request(tmp_path, seeds=(0,)), tmp_path)
    assert (row["metric"], row["mean"], row["std"]) == ("forgetting", 0.5, None)


def test_finished_runs_are_not_run_again_and_missing_seeds_are_added(simulated, tmp_path):
    run_cell(cell(), Request(tmp_path, seeds=(0, 1)), tmp_path)
    row = run_cell(cell(), Request(tmp_path, seeds=(0, 1, 2)), tmp_path)
    assert [run["seed"] for run in simulated.calls] == [0, 1, 2]
    assert row["seeds"] == "0 1 2"


def test_an_interrupted_run_goes_on_and_a_diverged_one_is_a_result(simulated, tmp_path):
    simulated.statuses = {0: "interrupted", 1: "failed"}
    request = Request(tmp_path, seeds=(0, 1, 2))
    row = run_cell(cell(), request, tmp_path)
    assert (row["unfinished seeds"], row["diverged seeds"], row["seeds"]) == ("0", "1", "2")
    simulated.statuses = {1: "failed"}
    row = run_cell(cell(), request, tmp_path)
    assert [run["seed"] for run in simulated.calls] == [0, 1, 2, 0]
    assert all(run["resume"] == "auto" for run in simulated.calls)
    assert (row["unfinished seeds"], row["diverged seeds"], row["seeds"]) == ("", "1", "0 2")


def test_a_run_of_another_configuration_is_never_taken_for_this_one(simulated, tmp_path):
    request = Request(tmp_path, seeds=(0,))
    run_cell(cell(), request, tmp_path)
    (run,) = runs_of(cell(), request)
    config = run.directory / "config.toml"
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.02"))
    with pytest.raises(UserError, match="another configuration"):
        finished(run)


def test_a_run_of_another_extension_is_never_taken_for_this_one(simulated, tmp_path):
    request = Request(tmp_path, seeds=(0,))
    run_cell(cell(), request, tmp_path)
    (run,) = runs_of(cell(), request)
    path = run.directory / "summary.json"
    summary = {**json.loads(path.read_text()), "versions": {"extension": "own.py 0123"}}
    path.write_text(json.dumps(summary))
    with pytest.raises(UserError, match=r"the extension own\.py 0123 instead of none; move it"):
        finished(run)


def test_a_cell_without_runs_has_the_published_number_alone(tmp_path):
    row = result(cell(), runs_of(cell(), Request(tmp_path, seeds=(0, 1))))
    assert (row["published mean"], row["mean"], row["difference"]) == (40.14, None, None)
    assert row["unfinished seeds"] == "0 1"


def test_results_keep_the_cells_of_earlier_calls(simulated, tmp_path):
    def saved(words, scale):
        request = Request(tmp_path, scale=scale, seeds=(0,))
        return write_results(tmp_path, [run_cell(cell(words=words), request, tmp_path)])

    saved("fedavg cifar10 s=2", 0.1)
    saved("fedntd cifar10 s=2", 0.1)
    saved("fedavg cifar10 s=2", 0.2)
    path = saved("fedavg cifar10 s=2", 0.1)
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert [(row["cell"], row["changes"]) for row in rows] == [
        ("fedntd cifar10 s=2", "rounds x 0.1"),
        ("fedavg cifar10 s=2", "rounds x 0.2"),
        ("fedavg cifar10 s=2", "rounds x 0.1"),
    ]
    assert all(float(row["mean"]) == pytest.approx(40.0) for row in rows)
    request = Request(tmp_path, scale=0.1, seeds=(0,))
    new = [run_cell(cell(), request, tmp_path)]
    earlier = earlier_results(tmp_path, new)
    assert [row["cell"].split()[0] for row in earlier] == ["fedntd", "fedavg"]
    assert [row["mean"] for row in earlier] == [pytest.approx(40.0)] * 2
    assert results_html([*earlier, *new], "a table").count("<details") == 3


def another_configuration(folder, seed):
    [config] = folder.glob(f"*seed{seed}/config.toml")
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.5"))


def test_a_seed_that_nobody_asked_for_may_have_another_configuration(simulated, tmp_path):
    run_cell(cell(), Request(tmp_path, seeds=(1,)), tmp_path)
    another_configuration(tmp_path, 1)
    assert run_cell(cell(), Request(tmp_path, seeds=(0,)), tmp_path)["seeds"] == "0"


def test_what_does_not_fit_is_refused_before_the_first_training(simulated, tmp_path):
    run_cell(cell(), Request(tmp_path, seeds=(1,)), tmp_path)
    another_configuration(tmp_path, 1)
    with pytest.raises(UserError, match=r"seed1 has a run with another configuration"):
        check_folder([cell()], Request(tmp_path, seeds=(0, 1)))


def test_an_edited_pyproject_changes_no_run(simulated, tmp_path):
    """The runs state every key that may change a result."""
    run_cell(cell(), Request(tmp_path, seeds=(0,)), tmp_path)
    (passed,) = simulated.calls
    assert (passed["precision"], passed["eval-every"], passed["clip-norm"]) == ("fp32", 1, 0.0)
    assert not {"device", "threads", "tracker"} & passed.keys()


def test_a_measure_that_the_run_left_out_is_none(simulated, tmp_path):
    found = cell("feddr+", "table14-pfl-finetune-loss", "dr alpha=0.1")
    row = run_cell(found, Request(tmp_path, seeds=(0,)), tmp_path)
    assert (row["mean"], row["seeds"], row["unmeasured seeds"]) == (None, "", "0")


def test_the_plan_runs_nothing_and_counts_everything(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    done = reproduce("--plan", "--dataset-as", "images", "--scale", "0.1", "--json")
    rows = json.loads(done.stdout)
    assert len(rows) == 49
    assert not simulated.calls
    assert all((row["runs"] == 0) == bool(row["cannot run because"]) for row in rows)
    assert {row["rounds"] for row in rows if row["runs"]} == {20}
    text = reproduce("--plan", "--dataset-as", "images", "--scale", "0.1").stdout
    assert "rounds x 0.1" in text
    assert f"{sum(row['runs'] > 0 for row in rows)} of 49 cells can run" in text


def test_the_command_runs_a_cell_and_says_what_is_not_as_published(
    simulated, tmp_path, monkeypatch
):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    arguments = ["--cell", "cifar10 fedavg s=2", "--dataset-as", "images", "--scale", "0.01"]
    arguments += ["--seeds", "0,1", "--output-dir", str(tmp_path)]
    done = reproduce(*arguments)
    assert done.exit_code == 0
    assert "not the published setting: rounds x 0.01" in " ".join(done.stdout.split())
    assert all(text in done.stdout for text in ("40.14", "41.00 ± 1.41", "at-chance"))
    assert 'fedapp run -c "method=' in done.stdout
    (row,) = json.loads(reproduce(*arguments, "--json").stdout)
    assert len(simulated.calls) == 2  # the second call found both
    assert row["changes"] == "rounds x 0.01, data from 'images'"
    assert (tmp_path / "results.csv").is_file()


def test_hosts_can_share_the_seeds_of_a_cell(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    cell_of = ["--cell", "fedavg cifar10 s=2", "--output-dir", str(tmp_path), "--json"]
    (other,) = json.loads(reproduce(*cell_of, "--seeds", "1-2").stdout)
    (all_seeds,) = json.loads(reproduce(*cell_of).stdout)
    (further,) = json.loads(reproduce(*cell_of, "--seeds", "3").stdout)
    assert [row["seeds"] for row in (other, all_seeds, further)] == ["1 2", "0 1 2", "0 1 2 3"]
    assert [run["seed"] for run in simulated.calls] == [1, 2, 0, 3]
    wrong = reproduce(*cell_of, "--seeds", "three")
    assert str(wrong.exception).startswith("--seeds 'three' must be different whole numbers")


def test_a_failed_run_is_the_exit_code(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    simulated.statuses = {0: "interrupted"}
    done = reproduce("--cell", "fedavg cifar10 s=2", "--seeds", "0", "--output-dir", str(tmp_path))
    assert done.exit_code == 1
    assert "unfinished 0" in " ".join(done.stdout.split())


def test_with_jobs_a_run_that_fails_is_tried_once_and_the_other_cells_are_reported(
    simulated, tmp_path, monkeypatch
):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    tried = []

    def apart(project, overrides, resources):
        tried.append((overrides["method"], overrides["seed"]))
        if overrides["method"] == "fedprox":
            raise UserError("the disk is full")
        return simulated(project, overrides, resources)

    assert reproduce("--jobs", "-1").exit_code == 2  # as the command line says wrong options
    monkeypatch.setattr(reproducing, "run_in_subprocess", apart)
    simulated.statuses = {1: "interrupted"}
    cells = ["--cell", "fedprox cifar10 s=2", "--cell", "fedavg cifar10 s=2", "--seeds", "0,1"]
    done = reproduce(*cells, "--jobs", "1", "--json", "--output-dir", str(tmp_path))
    assert done.exit_code == 1, done.output
    assert sorted(tried) == [("fedavg", 0), ("fedavg", 1), ("fedprox", 0), ("fedprox", 1)]
    unfinished = {row["cell"]: row["unfinished seeds"] for row in json.loads(done.stdout)}
    assert unfinished == {"fedprox cifar10 s=2": "0 1", "fedavg cifar10 s=2": "1"}
    assert "the disk is full" in done.stderr


def test_results_that_cannot_be_written_stop_no_cell(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    cells = ["--cell", "fedavg cifar10 s=2", "--cell", "fedprox cifar10 s=2", "--seeds", "0"]
    cells += ["--output-dir", str(tmp_path)]
    write, refusals = reproducing.write_table, []

    def full(*arguments):
        if refusals:
            raise refusals.pop()
        write(*arguments)

    monkeypatch.setattr(reproducing, "write_table", full)
    for times, code in ((2, 1), (1, 0)):
        refusals += [OSError(28, "No space left on device")] * times
        done = reproduce(*cells)
        assert done.exit_code == code, done.output
        assert "40.14" in done.stdout
        assert len(simulated.calls) == 2
        assert (tmp_path / "results.csv").is_file() == (code == 0)
        assert ("results.csv and" in done.stderr) == (code == 0)
    (tmp_path / "page").mkdir()
    done = reproduce(*cells, "--html", str(tmp_path / "page"))
    assert isinstance(done.exception, SystemExit)
    assert (done.exit_code, "40.14" in done.stdout) == (1, True)


def test_a_cell_that_cannot_run_is_refused_with_its_reason(tmp_path):
    done = reproduce("--cell", "fedavg cinic10", "--output-dir", str(tmp_path))
    assert isinstance(done.exception, UserError)
    assert "cinic10" in str(done.exception)
    assert not list(tmp_path.iterdir())
