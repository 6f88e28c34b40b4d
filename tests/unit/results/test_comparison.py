"""Comparing runs: groups, spreads and paired differences, checked against hand-made numbers."""

import math
import statistics

import pytest
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.results.comparison.groups import (
    compare,
    group_runs,
    labels,
    run_labels,
    unique_names,
)
from fedapp.results.comparison.page import comparison_html
from fedapp.results.comparison.spread import Spread
from fedapp.results.comparison.text import sentences, tables
from fedapp.results.plots.curves import group_curves
from fedapp.results.run_directory import RunDirectory


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a finished run with a final accuracy."""

    def make(accuracy, status="completed", of="", **changes):
        values = {key.replace("_", "-"): value for key, value in changes.items()}
        config = parse_config(values).flat()
        name = f"run{len(list(tmp_path.iterdir()))}"
        run = RunDirectory.create(tmp_path, name, {**config, "run-name": name})
        summary = {"method": config["method"], "seed": config["seed"], "status": status}
        summary |= {"accuracy_final": accuracy, "accuracy_best": accuracy, "seconds": 2.0}
        run.write_summary(summary | ({"accuracy_of": of} if of else {}))
        return run

    return make


def test_runs_of_one_name_in_two_folders_are_told_apart(tmp_path):
    runs = [
        RunDirectory.create(tmp_path / sweep, "seed0", parse_config({}).flat())
        for sweep in ("first", "second")
    ]
    assert unique_names(runs) == ["first/seed0", "second/seed0"]
    assert len(set(run_labels(runs))) == 2
    assert unique_names(runs[:1]) == ["seed0"]


def test_where_data_lies_does_not_part_a_group(make_run):
    assert len(group_runs([make_run(0.5, data_dir="a"), make_run(0.6, data_dir="b", seed=1)])) == 1
    own = {"dataset": "images"}
    runs = [make_run(0.5, data_dir="cats", **own), make_run(0.6, data_dir="dogs", seed=1, **own)]
    assert len(group_runs(runs)) == 2, "other images"


def test_a_reason_stands_beside_the_status(make_run):
    run = make_run(0.1)
    run.write_summary({**run.summary(), "reason": "no better than chance"})
    (row,) = tables(compare([run]))["Runs"]
    assert row["status"] == "completed: no better than chance"
    assert "reason" not in row


def test_spread_divides_by_n_minus_1_and_one_value_has_none():
    assert Spread.of([0.5, 0.7]) == Spread(pytest.approx(0.6), pytest.approx(math.sqrt(0.02)), 2)
    assert Spread.of([0.25]) == Spread(0.25, None, 1)
    assert Spread.of([]) is None
    assert Spread(0.6, math.sqrt(0.02), 2).percent() == "60.00 ± 14.14 %"
    assert Spread(0.25, None, 1).percent() == "25.00 %"


def test_groups_share_everything_but_the_seed_and_where_they_are_kept(make_run):
    runs = [make_run(0.5, method=m, seed=s, lr=0.1) for m in ("fedavg", "fedntd") for s in (0, 1)]
    runs += [make_run(0.5, method="fedavg", seed=3, lr=0.2)]
    kept = {"checkpoint_every": 5, "keep_state": True, "state_dir": "x", "decode_threads": 2}
    runs += [make_run(0.5, method="fedavg", seed=2, lr=0.1, **kept)]
    groups = group_runs(runs)
    assert labels(groups) == ["fedavg lr=0.1", "fedntd lr=0.1", "fedavg lr=0.2"]
    assert [list(group.by_seed("accuracy_final")) for group in groups] == [[0, 1, 2], [0, 1], [3]]


def test_a_partition_seed_of_its_own_is_another_group(make_run):
    follows = [make_run(0.5, seed=seed) for seed in (0, 1)]
    fixed = [make_run(0.5, seed=seed, partition_seed=7) for seed in (0, 1)]
    same = [make_run(0.5, method="fedavg", seed=seed, partition_seed=0) for seed in (0, 1)]
    groups = group_runs([*follows, *fixed, *same])
    assert [len(group.runs) for group in groups] == [2, 2, 2]
    assert labels(groups) == [
        "feddr+ partition-seed=auto",
        "feddr+ partition-seed=7",
        "fedavg partition-seed=0",
    ]


def test_a_run_from_before_a_key_is_in_the_group_of_its_default(make_run):
    norms = enumerate((0.0, 0.0, 0.5))
    older, newer, other = (make_run(0.5, seed=seed, clip_norm=norm) for seed, norm in norms)
    lines = (older.path / "config.toml").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("clip-norm ")]
    assert len(kept) == len(lines) - 1
    (older.path / "config.toml").write_text("\n".join(kept))
    groups = group_runs([RunDirectory.load(run.path) for run in (older, newer, other)])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert labels(groups) == ["feddr+ clip-norm=0.0", "feddr+ clip-norm=0.5"]


def test_another_file_of_the_same_name_is_another_group(make_run):
    for kind in ("extension", "split", "initial model"):
        one, other, again = (make_run(0.5, seed=seed) for seed in (0, 1, 2))
        for run, content in ((one, "12ab"), (other, "34cd"), (again, "12ab")):
            run.write_summary({**run.summary(), "versions": {kind: f"file {content}"}})
        groups = group_runs([one, other, again])
        assert [group.runs for group in groups] == [(one, again), (other,)]
        assert labels(groups) == [f"feddr+ {kind}=file 12ab", f"feddr+ {kind}=file 34cd"]


def test_what_follows_from_the_method_is_not_in_a_label_but_data_and_model_are(make_run):
    runs = [make_run(0.5, method="fedavg"), make_run(0.5, method="feddr+")]
    assert labels(group_runs(runs)) == ["fedavg", "feddr+"]
    runs += [make_run(0.5, method="fedntd", dataset="mnist")]
    assert labels(group_runs(runs))[2] == "fedntd dataset=mnist"


def test_what_two_methods_did_not_share_is_in_their_labels(make_run):
    shares = {"fedavg": 1.0, "fedprox": 0.5}
    runs = [make_run(0.5, method=name, participation=share) for name, share in shares.items()]
    assert labels(group_runs(runs)) == ["fedavg participation=1.0", "fedprox participation=0.5"]


def test_accuracies_on_two_data_sets_are_not_tested_against_each_other(make_run):
    kinds = {"mnist": (0.9, 0.95), "digits": (0.5, 0.6)}
    runs = [
        make_run(accuracy, dataset=name, seed=seed)
        for name, accuracies in kinds.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    assert compare(runs)["pairs"] == []


def test_personal_models_are_not_tested_against_a_global_one(make_run):
    kinds = {"fedavg": "global model", "fedbabu": "global model", "fedper": "personal models"}
    accuracies = {"fedavg": (0.5, 0.52), "fedbabu": (0.6, 0.65), "fedper": (0.8, 0.84)}
    runs = [
        make_run(accuracy, of=kind, method=method, seed=seed)
        for method, kind in kinds.items()
        for seed, accuracy in enumerate(accuracies[method])
    ]
    compared = compare(runs)
    assert [(row["group"], row["minus"]) for row in compared["pairs"]] == [("fedavg", "fedbabu")]
    groups = next(rows for title, rows in tables(compared).items() if title.startswith("Groups"))
    assert [row["accuracy of"] for row in groups] == list(kinds.values())
    same = next(rows for t, rows in tables(compare(runs[:4])).items() if t.startswith("Groups"))
    assert "accuracy of" not in same[0]


def test_failed_runs_count_as_runs_but_not_in_the_mean(make_run):
    runs = [make_run(0.5, seed=0), make_run(0.1, status="failed", seed=1), make_run(0.7, seed=2)]
    [group] = compare(runs)["groups"]
    assert (group["runs"], group["seeds"]) == (3, [0, 2])
    assert group["accuracy_final"] == pytest.approx(0.6)
    assert group["accuracy_final_std"] == pytest.approx(statistics.stdev([0.5, 0.7]))


def test_repeats_of_a_seed_are_averaged_before_they_count(make_run):
    runs = [make_run(0.4, seed=0), make_run(0.6, seed=0), make_run(0.9, seed=1)]
    [group] = group_runs(runs)
    assert group.by_seed("accuracy_final") == {0: pytest.approx(0.5), 1: 0.9}


def test_the_tables_say_what_the_numbers_say(make_run):
    final = {"fedavg": (0.70, 0.72, 0.71), "feddr+": (0.80, 0.83, 0.84)}
    runs = [
        make_run(value, method=method, seed=seed)
        for method, values in final.items()
        for seed, value in enumerate(values)
    ]
    compared = compare(runs)
    assert [row["seed"] for row in compared["runs"]] == [0, 1, 2, 0, 1, 2]
    [pair] = compared["pairs"]
    assert (pair["group"], pair["minus"], pair["seeds"]) == ("fedavg", "feddr+", [0, 1, 2])
    assert pair["p_holm"] == pair["p"] < 0.02
    texts = tables(compared)
    groups = next(rows for title, rows in texts.items() if title.startswith("Groups"))
    assert groups[0]["final"] == "71.00 ± 1.00 %"
    paired = next(rows for title, rows in texts.items() if "paired" in title)
    assert paired[0]["difference"] == "-11.33 ± 0.88"


def test_a_single_run_has_a_table_of_groups_and_none_of_pairs(make_run):
    assert len(titles := list(tables(compare([make_run(0.5)])))) == 2
    assert "paired" not in " ".join(titles)


def test_differences_are_sentences_with_the_larger_group_first(make_run):
    runs = [
        make_run(accuracy, method=method, seed=seed)
        for method, accuracies in {"fedavg": (0.50, 0.52), "feddr+": (0.60, 0.64)}.items()
        for seed, accuracy in enumerate(accuracies)
    ]
    (sentence,) = sentences(compare(runs))
    assert sentence.startswith("feddr+ is 11.00 points above fedavg (2 seeds, p = ")
    equal = [make_run(0.5, method="fedavg", seed=s, lr=lr) for lr in (0.1, 0.2) for s in (0, 1)]
    assert sentences(compare(equal)) == [
        "fedavg lr=0.1 and fedavg lr=0.2 end equal (2 seeds, p = 1 after Holm's correction)."
    ]
    assert sentences(compare([*runs, *equal]))[3:] == ["The table has 3 more."]


def test_the_page_has_accuracies_in_percent_and_folds_single_runs(make_run):
    runs = [make_run(0.5 + seed / 10, method="fedavg", seed=seed) for seed in (0, 1)]
    for seed, run in enumerate(runs):
        run.log_round(*({"round": r, "accuracy": (r + seed) / 10} for r in (1, 2)))
    text = comparison_html(runs)
    assert "50.0 %" in text
    assert "55.00 ± 7.07 %" in text
    assert "The 2 runs one by one" in text


def test_the_curve_of_a_group_is_that_of_its_completed_runs(make_run, monkeypatch):
    runs = []
    for seed, (status, rounds) in enumerate([("completed", 3), ("failed", 1)]):
        runs.append(make_run(0.5, status, method="fedavg", seed=seed))
        runs[-1].log_round(*({"round": r, "accuracy": 0.5} for r in range(1, rounds + 1)))
    drawn = []

    def draw(groups):
        drawn.append([len(rows) for _, curves in groups for rows in curves])
        return group_curves(groups)

    monkeypatch.setattr("fedapp.results.comparison.page.plots.group_curves", draw)
    comparison_html(runs)
    comparison_html(runs[1:])
    assert drawn == [[3], [1]]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("summary.json", '{"accuracy_final": "high", "status": "completed"}'),
        ("client_scores.json", '{"round": 1, "clients": {"0": 5}}'),
        ("partition.json", '{"a": 1}'),
        ("metrics.jsonl", '{"round": 1, "accuracy": "high"}\n'),
    ],
)
def test_a_file_changed_by_hand_is_one_sentence_of_report_and_compare(tmp_path, file, content):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg", "seed": 0})
    (run.path / file).write_text(content)
    for command in (["report"], ["compare", "--html", str(tmp_path / "page.html")]):
        done = CliRunner().invoke(app, [*command, str(run.path)])
        assert done.exit_code == 0 or "has not the form that fedapp gives it" in str(done.exception)
    assert isinstance(CliRunner().invoke(app, ["report", str(run.path)]).exception, UserError)
