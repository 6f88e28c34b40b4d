"""Sweeps: what is planned, what is refused before anything starts, and going on after failures."""

import csv
import json
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_runs import BASE, ROOT, FakeRunner, make_plan
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.core.errors import UserError
from fedapp.engines import launch
from fedapp.engines.resources import Resources
from fedapp.experiments import jobs, sweep
from fedapp.experiments.sweep_options import parse_seeds, parse_vary


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("method=fedavg,feddr+", ("fedavg", "feddr+")),
        ("lr=0.01, 0.1,auto", (0.01, 0.1, "auto")),
        ("seedless=1,1.0,true", (1, 1.0, True)),
        ("augmentation='crop flip',none", ("crop flip", "none")),
        ('x="a,b",\'c"d\'', ("a,b", 'c"d')),
        ("model=cnn", ("cnn",)),
    ],
)
def test_values_are_toml_scalars_and_bare_words(text, values):
    [(key, found)] = parse_vary([text]).items()
    assert key == text.partition("=")[0]
    assert found == values
    assert list(map(type, found)) == list(map(type, values))


@given(st.lists(st.one_of(st.integers(), st.booleans(), st.text("ab ,+-")), min_size=1, max_size=5))
def test_what_is_written_as_toml_is_read_back(values):
    unique = list({repr(value): value for value in values}.values())
    text = "key=" + ",".join(json.dumps(value) for value in unique)
    assert parse_vary([text]) == {"key": tuple(unique)}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["method"], "must look like key=value,value"),
        (["=3"], "must look like"),
        (["lr="], "separated by commas"),
        (["lr=0.1,"], "separated by commas"),
        (["lr='0.1,0.2"], "separated by commas"),
        (["lr=0.1,0.10"], "gives 'lr' a value twice"),
        (["lr=0.1", "lr=0.2"], "names 'lr' twice"),
        (["seed=1,2"], "use --seeds"),
        (["run-name=a,b"], "--name"),
        (["alpha=2020-01-01"], "not a word, number"),
    ],
)
def test_a_wrong_vary_is_one_sentence(texts, words):
    with pytest.raises(UserError, match=words):
        parse_vary(texts)


def test_seeds():
    assert parse_seeds("0, 1,20") == [0, 1, 20]
    assert parse_seeds("7, 0-2") == [7, 0, 1, 2]
    with pytest.raises(UserError, match="'0-99999999999' names more than 10,000 seeds"):
        parse_seeds("0-99999999999")
    for wrong in ("", "1,,2", "-1", "a", "1,1", "1.5", "3-1", "0-2,1", "1-", "0-1-2"):
        with pytest.raises(UserError, match="different whole numbers"):
            parse_seeds(wrong)


def test_a_varied_key_without_effect_is_named(tmp_path):
    vary = {"partition": ("lda", "shards"), "alpha": (0.1, 0.5), "lr": (0.1,)}
    runs = sweep.plan(ROOT, {**BASE, "method": "fedavg"}, vary, [0], tmp_path)
    [note] = sweep.without_effect(runs)
    assert note == f"alpha has no effect in 2 of 4 runs (first: {runs[2].directory.name})"


def test_the_plan_has_every_combination_with_every_seed(tmp_path):
    runs = make_plan(tmp_path)
    assert [run.directory.name for run in runs] == [
        f"{method}-lr{lr}-seed{seed}"
        for method in ("fedavg", "feddr+")
        for lr in (0.01, 0.1)
        for seed in (0, 1)
    ]
    assert all(run.config["num-rounds"] == 2 and run.config["resume"] == "auto" for run in runs)
    assert (runs[-1].config["method"], runs[-1].config["lr"], runs[-1].seed) == ("feddr+", 0.1, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "own", [{"seed": 5}, {"run-name": "a"}, {"output-dir": "a"}, {"resume": "auto"}]
)
def test_what_a_sweep_sets_itself_is_not_taken_from_its_configuration(tmp_path, own):
    (key, value) = next(iter(own.items()))
    typed = ["sweep", "--name", "x", "--plan", "--app", str(ROOT), "-c", f"{key}={value!r}"]
    done = CliRunner().invoke(cli.app, [*typed, "--output-dir", str(tmp_path)])
    assert str(done.exception).startswith(f"-c cannot name '{key}': use --seeds, --name")
    runs = make_plan(tmp_path, base={**BASE, **own})  # as a file of another run has them
    assert [(run.seed, run.config["seed"]) for run in runs[:2]] == [(0, 0), (1, 1)]


def test_only_seeds_make_a_sweep_too(tmp_path):
    runs = make_plan(tmp_path, vary={})
    assert [run.directory.name for run in runs] == ["seed0", "seed1"]


def test_names_are_folder_names():
    assert sweep.run_name({"augmentation": "crop flip", "data-dir": "/a/b"}, 0) == (
        "crop_flip-_a_b-seed0"
    )


@pytest.mark.parametrize(
    ("vary", "words"),
    [
        ({"method": ("fedavg", "fedsuper")}, "method=fedsuper: method 'fedsuper' does not exist"),
        ({"lr": (0.1, -1.0)}, "lr=-1.0: run-config key 'lr' is -1.0 but must be"),
        ({"rate": (1,)}, "rate=1: run-config key 'rate' does not exist"),
        ({"data-dir": ("a b", "a_b")}, "two combinations would both be called 'a_b-seed0'"),
    ],
)
def test_the_first_bad_combination_is_named_before_anything_starts(tmp_path, vary, words):
    with pytest.raises(UserError) as caught:
        make_plan(tmp_path, vary=vary)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def lines_of(folder):
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_further_call_keeps_the_lines_of_the_runs_that_are_still_there(tmp_path):
    plan = make_plan(tmp_path, vary={"lr": (0.1, 0.2)}, seeds=(0,))
    first = sweep.execute(ROOT, plan, Resources(), FakeRunner())
    shutil.rmtree(plan[1].directory.path)
    plan = make_plan(tmp_path, vary={"momentum": (0.1,)}, seeds=(7,))
    second = sweep.execute(ROOT, plan, Resources(), FakeRunner())
    table = lines_of(tmp_path)
    assert [row["run"] for row in table] == [first[0]["run"], second[0]["run"]]
    assert [(row["lr"], row["momentum"]) for row in table] == [("0.1", ""), ("", "0.1")]


def test_a_failed_run_does_not_stop_the_others_and_is_run_again(tmp_path):
    broken = "fedavg-lr0.1-seed1"
    first = FakeRunner(failing=[broken])
    rows = sweep.execute(ROOT, make_plan(tmp_path), Resources(), first)
    assert len(first.started) == 8
    assert [row["run"] for row in rows if row["status"] == "failed"] == [broken]
    assert next(row for row in rows if row["run"] == broken)["reason"] == "too few replies"
    second = FakeRunner()
    rows = sweep.execute(ROOT, make_plan(tmp_path), Resources(), second)
    assert second.started == [broken]
    assert {row["status"] for row in rows} == {"completed"}
    table = lines_of(tmp_path)
    assert [row["run"] for row in table] == [row["run"] for row in rows]
    assert (table[0]["method"], table[0]["lr"], table[0]["accuracy_final"]) == (
        "fedavg", "0.01", "0.5",
    )  # fmt: skip


def test_a_run_is_reported_before_the_next_starts(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(jobs.log, "info", lambda text, *values: lines.append(text % values))
    sweep.execute(ROOT, make_plan(tmp_path, vary={}), Resources(), FakeRunner())
    assert lines == [
        "seed0 starts", "[1/2] seed0 completed", "seed1 starts", "[2/2] seed1 completed",
    ]  # fmt: skip


def test_a_run_that_cannot_start_is_noted_with_its_sentence(tmp_path):
    def refuse(project, values, resources):
        raise UserError("the local SuperLink did not start")

    rows = sweep.execute(ROOT, make_plan(tmp_path, vary={}), Resources(), refuse)
    assert [(row["status"], row["reason"]) for row in rows] == [
        ("failed", "the local SuperLink did not start")
    ] * 2


def test_a_run_that_diverged_is_not_trained_again(tmp_path):
    runs = make_plan(tmp_path, vary={})
    sweep.execute(ROOT, runs, Resources(), FakeRunner(failing=["seed0"], diverging=["seed1"]))
    assert [row["plan"] for row in sweep.planned(runs)] == ["run", "skip: diverged"]
    again = FakeRunner()
    rows = sweep.execute(ROOT, runs, Resources(), again)
    assert again.started == ["seed0"]
    assert [row["status"] for row in rows] == ["completed", "failed"]


def test_a_run_that_dies_does_not_pass_for_its_earlier_failure(tmp_path):
    runs = make_plan(tmp_path, vary={}, seeds=(0,))
    sweep.execute(ROOT, runs, Resources(), FakeRunner(failing=["seed0"]))
    rows = sweep.execute(ROOT, runs, Resources(), lambda *_: 137)
    assert rows[0]["status"] == "failed"
    assert "exit code 137" in rows[0]["reason"]


def test_another_configuration_under_the_same_name_is_refused(tmp_path):
    sweep.execute(ROOT, make_plan(tmp_path, vary={}), Resources(), FakeRunner())
    assert all(run.outcome == "completed" for run in make_plan(tmp_path, vary={}))
    with pytest.raises(UserError, match=r"has a run with num-rounds = 2 instead of 3"):
        make_plan(tmp_path, base={**BASE, "num-rounds": 3}, vary={})
    [same, _] = make_plan(tmp_path, base={**BASE, "round-timeout": 9.0}, vary={})
    assert same.outcome == "completed"


def test_a_run_that_ended_before_round_1_is_in_no_ones_way(tmp_path):
    path = make_plan(tmp_path, vary={})[0].directory.path
    path.mkdir(parents=True)
    (path / ".lock").touch()
    assert len(make_plan(tmp_path, vary={})) == 2
    (path / "checkpoints").mkdir()
    (path / "config.toml").write_text('method = "feddr+"\nnum-rounds = 99\n')
    assert len(make_plan(tmp_path, vary={})) == 2
    (path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="has a run with num-clients = 20 instead of 10"):
        make_plan(tmp_path, vary={})


def test_the_summary_has_mean_and_deviation_over_completed_seeds(tmp_path):
    runs = make_plan(tmp_path, vary={"method": ("fedavg", "dr")}, seeds=(0, 1, 2))
    rows = sweep.execute(ROOT, runs, Resources(), FakeRunner(failing=["fedavg-seed2", "dr-seed0"]))
    fedavg, dr = sweep.summarise(rows)
    assert (fedavg["combination"], fedavg["seeds"], fedavg["runs"]) == ("method=fedavg", [0, 1], 3)
    assert fedavg["accuracy_final"] == pytest.approx(0.55)
    assert fedavg["accuracy_final_std"] == pytest.approx(0.1 / 2**0.5)
    assert dr["accuracy_final"] == pytest.approx(0.65)
    texts = sweep.readable([fedavg, dr])
    assert texts[0]["final"] == "55.00 ± 7.07 %"
    assert texts[0]["completed"] == "2 of 3"


def test_jobs_run_at_the_same_time_and_fail_one_by_one():
    import threading

    meeting = threading.Barrier(2, timeout=20)  # passes only if two are there at once
    found = dict(jobs.run_parallel(2, lambda item: (meeting.wait(), item * 10)[1], [1, 2, 3, 4]))
    assert found == {1: 10, 2: 20, 3: 30, 4: 40}
    with pytest.raises(UserError, match="--jobs is -1"):
        jobs.runner_for(-1)


def test_output_of_runs_and_their_children_goes_to_stderr(capfd):
    with jobs.stdout_to_stderr():
        os.system("echo from a child")
        os.write(1, b"from this process\n")
    os.write(1, b"a result\n")
    captured = capfd.readouterr()
    assert captured.out == "a result\n"
    assert captured.err == "from a child\nfrom this process\n"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that calls `fedapp sweep` with runs that are written by a fake."""
    fake = FakeRunner(failing=["dr-seed1"])
    monkeypatch.setattr(launch, "run", fake)
    arguments = ["sweep", "--app", str(ROOT), "-c", "num-rounds=2 num-clients=10"]
    arguments += ["--vary", "method=fedavg,dr", "--seeds", "0,1", "--output-dir", str(tmp_path)]
    return fake, lambda *more: CliRunner().invoke(cli.app, [*arguments, *more])


def test_the_command_plans_without_starting_anything(command, tmp_path):
    fake, call = command
    done = call("--name", "demo", "--plan", "--json")
    assert done.exit_code == 0, done.output
    assert [row["plan"] for row in json.loads(done.stdout)] == ["run"] * 4
    assert not fake.started
    assert not list(tmp_path.iterdir())


def test_the_command_runs_and_fails_when_a_run_failed(command, tmp_path):
    fake, call = command
    done = call("--name", "demo", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert [row["completed"] for row in found["combinations"]] == [2, 1]
    assert (tmp_path / "demo" / "sweep.csv").exists()
    fake.failing = ()
    again = call("--name", "demo")
    assert again.exit_code == 0, again.output
    assert fake.started[4:] == ["dr-seed1"]
    assert "skip: completed" in again.stdout
    assert "55.00 ± 7.07 %" in again.stdout


@pytest.mark.parametrize("name", ["a/b", "..", ""])
def test_a_sweep_is_called_like_a_folder(command, name):
    _, call = command
    assert isinstance(call("--name", name).exception, UserError)
