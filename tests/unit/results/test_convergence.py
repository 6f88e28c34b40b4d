"""Rounds, bytes and seconds to a target accuracy, and the mean of the last ten rounds, by hand."""

import json
import math

import pytest
from sweep_runs import ROOT, FakeRunner, make_plan
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.resources import Resources
from fedapp.experiments import sweep
from fedapp.experiments.csv_table import read_table
from fedapp.results.comparison.convergence import (
    Reached,
    accuracy_last10,
    until_target,
    when_reached,
)
from fedapp.results.comparison.groups import compare
from fedapp.results.comparison.page import comparison_html
from fedapp.results.comparison.result_numbers import result_numbers
from fedapp.results.comparison.text import tables
from fedapp.results.run_directory import RunDirectory


def rows_of(*accuracies, **more):
    """Rounds of two seconds in which the clients send 1 MB and receive 2 MB."""
    traffic = {"client_bytes_up": 10**6, "client_bytes_down": 2 * 10**6, "bytes_down": 7}
    return [
        {"round": number, "accuracy": accuracy, "seconds": 2.0, **traffic, **more}
        for number, accuracy in enumerate(accuracies, 1)
    ]


def test_the_first_tested_round_with_the_accuracy_counts_with_all_rounds_until_then():
    rows = rows_of(0.3, 0.59, 0.6, 0.5, 0.7)
    assert when_reached(rows, 0.6) == Reached(3, 9.0, 6.0)
    assert when_reached(rows, 0.61) == Reached(5, 15.0, 10.0)
    assert when_reached(rows, 0.3) == Reached(1, 3.0, 2.0)
    assert when_reached(rows, 0.71) is None
    assert when_reached([], 0.1) is None
    sparse = rows_of(None, 0.2, None, 0.6, None)
    assert when_reached(sparse, 0.5) == Reached(4, 12.0, 8.0)
    assert when_reached(rows_of(None, None), 0.1) is None


def test_a_percentage_is_reached_by_the_fraction_that_it_means():
    for hundredths in range(1, 10001):
        rows = rows_of(hundredths / 10000)
        assert when_reached(rows, hundredths / 100 / 100), hundredths
        assert not when_reached(rows, (hundredths + 1) / 100 / 100), hundredths


def test_a_test_without_some_clients_does_not_reach_the_target_where_others_have_all():
    rows = [*rows_of(0.9, unevaluated=[3]), *rows_of(0.5, 0.7)[1:]]
    assert when_reached(rows, 0.6) == Reached(2, 6.0, 4.0)
    assert when_reached(rows_of(0.9, unevaluated=[3]), 0.6) == Reached(1, 3.0, 2.0)


def test_rounds_of_another_version_have_a_round_and_no_bytes():
    rows = [{"round": 1, "accuracy": 0.6}]
    assert when_reached(rows, 0.6) == Reached(1, None, None)
    found = until_target({0: [Reached(1, None, 1.0)], 1: [Reached(3, 5.0, 2.0)]})
    assert (found["megabytes"], found["megabytes_std"]) == (None, None)
    assert (found["round"], found["seconds"]) == (2.0, 1.5)


def test_the_last_ten_rounds_are_averaged_over_their_tests():
    tenths = [number / 100 for number in range(1, 13)]
    assert accuracy_last10(rows_of(*tenths)) == pytest.approx(0.075)  # of 0.03 to 0.12
    assert accuracy_last10(rows_of(*tenths[:10])) == pytest.approx(0.055)
    assert accuracy_last10(rows_of(*tenths[:9])) is None
    every_five = [0.9, *[None] * 3, 0.5, *[None] * 4, 0.7]
    assert accuracy_last10(rows_of(*every_five[-6:])) is None
    assert accuracy_last10(rows_of(0.99, *every_five)) == pytest.approx((0.9 + 0.5 + 0.7) / 3)
    assert accuracy_last10(rows_of(*[0.9] * 5, *[None] * 9, 0.5)) is None, "one test"
    partial = [*rows_of(*[0.5] * 9), {"round": 10, "accuracy": 0.9, "unevaluated": [1]}]
    assert accuracy_last10(partial) == 0.5


def test_the_mean_is_over_the_seeds_that_reach_the_target_and_the_others_are_named():
    runs_of = {
        2: [Reached(74, 30.0, 7.0)],
        0: [Reached(68, 20.0, 5.0)],
        1: [None],
        3: [Reached(5, 1.0, 1.0), None],
    }
    assert until_target(runs_of) == {
        "reached": [0, 2],
        "not_reached": [1, 3],
        "round": 71.0,
        "round_std": pytest.approx(math.sqrt(18)),
        "megabytes": 25.0,
        "megabytes_std": pytest.approx(math.sqrt(50)),
        "seconds": 6.0,
        "seconds_std": pytest.approx(math.sqrt(2)),
    }
    repeated = until_target({0: [Reached(4, 2.0, 1.0), Reached(6, 4.0, 2.0)]})
    assert (repeated["round"], repeated["round_std"]) == (5.0, None)
    assert until_target({0: [None]})["round"] is None
    assert until_target({})["reached"] == []


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a run with the accuracy of each round."""

    def make(*accuracies, status="completed", more=None, **changes):
        keys = {key.replace("_", "-"): value for key, value in changes.items()}
        config = parse_config({"method": "fedavg", **keys}).flat()
        run = RunDirectory.create(tmp_path, f"run{len(list(tmp_path.iterdir()))}", config)
        run.log_round(*rows_of(*accuracies))
        if status:
            measured = [each for each in accuracies if each is not None]
            summary = {"method": config["method"], "seed": config["seed"], "status": status}
            summary |= {"accuracy_final": measured[-1], "accuracy_best": max(measured)}
            run.write_summary(
                {**summary, "seconds": 2.0, "rounds": len(accuracies), **(more or {})}
            )
        return run

    return make


def target_row(runs, target=0.6):
    found = next(rows for title, rows in tables(compare(runs, target=target)).items()
                 if title.startswith("Until"))  # fmt: skip
    return [list(row.values())[1:] for row in found]


def test_all_seeds_some_seeds_and_none(make_run):
    rise = [0.1] * 19
    all_reach = [make_run(*rise, *[0.1] * n, 0.6, seed=n) for n in range(3)]
    assert target_row(all_reach) == [["in round 21 ± 1 (3 of 3 seeds)", "63 ± 3", "42 ± 2"]]
    part = [*all_reach[:2], make_run(*rise, seed=2)]
    assert target_row(part) == [
        [
            "in round 20 ± 1 (2 of 3 seeds, the mean is over these)",
            "62 ± 2 (2 of 3 seeds)",
            "41 ± 1 (2 of 3 seeds)",
        ]
    ]
    assert target_row(part[1:]) == [
        ["in round 21 (1 of 2 seeds)", "63 (1 of 2 seeds)", "42 (1 of 2 seeds)"]
    ]
    assert target_row(part, 0.95) == [["never (0 of 3 seeds)", None, None]]
    assert target_row([all_reach[0]]) == [["in round 20 (1 of 1 seed)", "60", "40"]]


def test_runs_that_have_not_ended_are_counted_apart_and_diverged_ones_among_the_seeds(make_run):
    runs = [
        make_run(0.1, 0.6, seed=0),
        make_run(0.6, seed=1, status="interrupted"),
        make_run(0.1, seed=2, status=""),
        make_run(0.1, seed=3, status="failed", more={"diverged": True}),
    ]
    [[text, *_]] = target_row(runs)
    assert text == "in round 2 (1 of 2 seeds, 2 not ended)"
    [row] = compare(runs, target=0.6)["targets"]
    assert (row["reached"], row["not_reached"], row["unknown"]) == ([0], [3], [1, 2])
    assert target_row(runs[1:3]) == [["never (2 not ended)", None, None]]


def test_the_resolution_is_stated_where_not_every_round_is_tested(make_run):
    runs = [make_run(None, 0.1, None, 0.7, seed=seed, eval_every=2) for seed in (0, 1)]
    assert target_row(runs)[0][0] == "in round 4.0 ± 0.0 (2 of 2 seeds, tested every 2 rounds)"


def test_every_group_has_a_line_and_without_a_target_there_is_no_table(make_run):
    runs = [make_run(0.1, 0.6), make_run(0.7, method="fedntd")]
    assert compare(runs)["targets"] == []
    assert not any("target" in title for title in tables(compare(runs)))
    rows = compare(runs, target=0.6)["targets"]
    assert [(row["group"], row["round"]) for row in rows] == [("fedavg", 2.0), ("fedntd", 1.0)]
    assert "reached 60 %" in comparison_html(runs, 0.6)
    assert "in round 2 (1 of 1 seed)" in comparison_html(runs, 0.6)


@pytest.mark.parametrize("wrong", [0.0, -0.1, 60.0, math.nan, math.inf])
def test_a_target_is_a_fraction_in_python(make_run, wrong):
    with pytest.raises(UserError, match="must be a fraction above 0, at most 1"):
        compare([make_run(0.1)], target=wrong)


def command(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_the_command_takes_percent_for_table_json_and_page(make_run, tmp_path):
    run, page = make_run(0.1, 0.6).path, tmp_path / "page.html"
    done = command(run, "--target", "60", "--html", page)
    assert done.exit_code == 0, done.output
    assert "reached 60 %" in done.stdout
    assert "in round 2 (1 of 1 seed)" in done.stdout
    assert "reached 60 %" in page.read_text()
    [row] = json.loads(command(run, "--target", "60", "--json").stdout)["targets"]
    assert (row["target"], row["round"], row["megabytes"], row["seconds"]) == (0.6, 2.0, 6.0, 4.0)
    for wrong in ("0", "-5", "101", "nan"):
        sentence = str(command(run, "--target", wrong).exception)
        assert sentence == f"--target is {wrong} but must be a percentage above 0, at most 100"


def test_a_run_of_an_earlier_version_gets_the_mean_of_its_rounds(make_run, caplog):
    old = make_run(*[0.5] * 9, 0.7)
    assert "accuracy_last10" not in old.summary()
    compared = compare([old])
    assert compared["runs"][0]["accuracy_last10"] == pytest.approx(0.52)
    assert compared["groups"][0]["accuracy_last10"] == pytest.approx(0.52)
    groups = next(rows for t, rows in tables(compared).items() if t.startswith("Groups"))
    assert groups[0]["last 10"] == "52.00 %"
    assert tables(compared)["Runs"][0]["last 10"] == "52.0 %"
    old.write_summary({**old.summary(), "accuracy_last10": 0.4})
    assert result_numbers(old)["accuracy_last10"] == 0.4
    assert "accuracy_last10" not in result_numbers(make_run(*[0.5] * 10, status="interrupted"))


@pytest.mark.parametrize("line", ["broken\n{}\n", '{"round": 1, "accuracy": "high"}\n' * 10])
def test_rounds_that_cannot_be_read_are_a_warning_and_leave_the_other_figures(
    make_run, caplog, line
):
    run = make_run(0.5)
    run.metrics_path.write_text(line)
    assert compare([run])["groups"][0]["accuracy_final"] == 0.5
    assert f"no mean of the last ten rounds of {run.name}: " in caplog.text


def test_the_mean_of_the_last_ten_rounds_is_a_column_also_for_runs_of_an_earlier_version(tmp_path):
    plan = make_plan(tmp_path, vary={"lr": (0.1,)}, seeds=(0, 1))
    sweep.execute(ROOT, plan, Resources(), FakeRunner())
    for each, accuracy in zip(plan, (0.5, 0.7), strict=True):
        rounds = [{"round": n, "accuracy": accuracy} for n in range(1, 11)]
        each.directory.log_round(*rounds)
    rows = sweep.execute(ROOT, plan, Resources(), FakeRunner())
    assert [line["accuracy_last10"] for line in read_table(tmp_path / "sweep.csv", [])] == [
        "0.5",
        "0.7",
    ]
    [combination] = sweep.summarise(rows)
    assert combination["accuracy_last10"] == pytest.approx(0.6)
    assert sweep.readable([combination])[0]["last 10"] == "60.00 ± 14.14 %"
