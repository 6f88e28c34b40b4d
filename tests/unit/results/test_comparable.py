"""What a reader must know to compare two numbers: of which models, images, clients and rounds."""

import json

import pytest
from in_process import ROOT, settings

from clients.base import LocalClient
from fedapp.config.resolve import parse_config
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.experiments import sweep
from fedapp.results.class_accuracy import class_accuracy_measures
from fedapp.results.comparison.groups import compare
from fedapp.results.formatting import headline, status
from fedapp.results.report.report import report_html
from fedapp.results.run_directory import RunDirectory
from fedapp.results.traffic import traffic_row


@pytest.fixture
def make_run(tmp_path):
    """Return a function that writes a finished run with a final accuracy."""

    def make(accuracy, **changes):
        config = parse_config({key.replace("_", "-"): v for key, v in changes.items()}).flat()
        name = f"run{len(list(tmp_path.iterdir()))}"
        run = RunDirectory.create(tmp_path, name, {**config, "run-name": name})
        run.write_summary(
            {"seed": config["seed"], "status": "completed", "accuracy_final": accuracy}
        )
        return run

    return make


@pytest.fixture
def train(tmp_path):
    """Return a function that trains ten clients in this process, and returns the run."""

    def run(**changes) -> RunDirectory:
        config = settings(output_dir=str(tmp_path), **{"run_name": "run", **changes})
        assert run_in_process(ROOT, config, Resources()) == 0
        return RunDirectory.load(tmp_path / str(config["run-name"]))

    return run


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"partition": "lda", "alpha": 0.1}, {"partition": "lda", "alpha": 0.5}),
        ({"shards": 2}, {"shards": 5}),
        ({"stochastic_every": 10}, {"stochastic_every": 0}),
        ({"local_epochs": 1, "batch_size": 10}, {"local_epochs": 5, "batch_size": 50}),
        ({"augmentation": "none"}, {"augmentation": "flip"}),
        ({"precision": "fp32"}, {"precision": "bf16"}),
    ],
)
def test_another_division_of_the_data_names_both_groups(make_run, one, other):
    runs = [make_run(0.5 + s / 100, method="fedavg", seed=s, **one) for s in range(3)]
    runs += [make_run(0.6 + s * s / 100, method="fedprox", seed=s, **other) for s in range(3)]
    (pair,) = compare(runs)["pairs"]
    for key in set(one) - {"partition"}:
        assert f"{key.replace('_', '-')}={one[key]}" in pair["group"]
        assert f"{key.replace('_', '-')}={other[key]}" in pair["minus"]


def test_accuracies_on_other_images_of_ones_own_are_not_tested_against_each_other(make_run):
    own = {"method": "fedavg", "dataset": "images", "data_dir": "/one"}
    for change in ({"data_dir": "/two"}, {"image_size": 32}):
        runs = [make_run(0.5 + s / 100, seed=s, **own) for s in range(3)]
        runs += [make_run(0.6 + s * s / 100, seed=s, **own | change) for s in range(3)]
        assert compare(runs)["pairs"] == []


def test_the_summary_says_when_the_final_accuracy_lacks_clients(train, monkeypatch):
    evaluate = LocalClient.evaluate

    def broken(self, parameters, config):
        if self.client > 5 and config["server_round"] == 2:
            raise RuntimeError("no memory left")
        return evaluate(self, parameters, config)

    monkeypatch.setattr(LocalClient, "evaluate", broken)
    summary = train(method="fedper", num_rounds=2, tolerate_failures=True).summary()
    assert summary["status"] == "completed"
    assert status(summary) == "completed: the final accuracy is that of 6 of 10 clients"


@pytest.mark.parametrize(
    ("changes", "models"),
    [
        ({"method": "fedavg", "client_eval_every": 1}, "the global model"),
        ({"method": "fedavg", "finetune_epochs": 1}, "fine-tuned models"),
        ({"method": "fedavg-ft"}, "fine-tuned models"),
        ({"method": "fedper"}, "personal models"),
        ({"method": "fedgela", "client_eval_every": 1}, "personal models"),
    ],
)
def test_the_clients_accuracies_say_which_models_they_are_of(train, changes, models):
    run = train(num_rounds=1, **changes)
    assert run.summary()["client_accuracy_of"] == models
    assert f"Own test splits, {models}" in dict(headline(run.summary()))
    of_global = "After round 1 of the global model: lowest" in report_html(run)
    assert of_global == (changes["method"] == "fedavg-ft")


def test_a_resumed_runs_total_time_includes_its_earlier_rounds(train):
    train(num_rounds=2, checkpoint_every=1)
    run = train(num_rounds=3, checkpoint_every=1, resume="auto")
    assert run.summary()["seconds_total"] > run.summary()["seconds"]


def test_a_sweep_of_global_and_personal_models_says_which_accuracies_are_of_which():
    rows = [
        {
            "combination": method, "seed": 0, "status": "completed", "accuracy_of": of,
            "accuracy_final": 0.5, "accuracy_best": 0.5, "seconds": 1.0,
        }
        for method, of in (("fedavg", "global model"), ("fedper", "personal models"))
    ]  # fmt: skip
    texts = sweep.readable(sweep.summarise(rows))
    assert [row["accuracy of"] for row in texts] == ["global model", "personal models"]
    assert "accuracy of" not in sweep.readable(sweep.summarise(rows[:1]))[0]


def test_traffic_shows_a_final_accuracy_for_completed_runs_only(tmp_path):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    sent = dict.fromkeys(("bytes_up", "bytes_down", "client_bytes_up", "client_bytes_down"), 9)
    run.log_round({"round": 1, "accuracy": 0.5, "clients": 5, **sent})
    assert traffic_row(run)["accuracy_final"] == 0.5
    run.write_summary({"status": "failed", "accuracy_final": None})
    assert traffic_row(run)["accuracy_final"] is None


def test_forgetting_says_of_how_many_tests_it_is(train, caplog):
    rows = [{"class_accuracy": values} for values in ([0.5, 0.5], None, [0.25, 0.5])]
    assert class_accuracy_measures("forgetting", rows)["class_accuracy_rounds"] == 2
    run = train(method="fedavg", num_rounds=4, eval_every=2, analyses="norms forgetting")
    assert run.summary()["class_accuracy_rounds"] == 2
    assert "forgetting: of the tests of every 2 rounds only" in caplog.text
    assert "class_accuracy_rounds" not in json.loads((run.path / "analysis.json").read_text())


@pytest.fixture
def marked(tmp_path):
    """Return a function that writes a finished run as it is recorded, with or without some keys."""

    def make(accuracy, without=(), **changes):
        given = {key.replace("_", "-"): v for key, v in changes.items()}
        config = parse_config(given)
        name = f"run{len(list(tmp_path.iterdir()))}"
        values = {k: v for k, v in config.recorded().items() if not k.startswith(tuple(without))}
        run = RunDirectory.create(
            tmp_path, name, {**values, "run-name": name}, origins=config.origins(given)
        )
        run.write_summary({"seed": config.seed, "status": "completed", "accuracy_final": accuracy})
        return run

    return make


def test_seeds_of_before_and_after_another_method_was_added_are_one_group(marked):
    runs = [marked(0.5, ("apfl-", "fedrod-"), method="fedavg", seed=seed) for seed in (0, 1)]
    runs += [marked(0.6, method="fedavg", seed=seed) for seed in (2, 3)]
    (group,) = compare(runs)["groups"]
    assert (group["group"], group["seeds"]) == ("fedavg", [0, 1, 2, 3])
    runs.append(marked(0.7, method="apfl", apfl_alpha=0.25, seed=0))
    runs.append(marked(0.7, method="apfl", seed=0))
    names = [group["group"] for group in compare(runs)["groups"]]
    assert names[0] == "fedavg"
    assert "apfl apfl-alpha=0.25" in names


def test_a_chosen_partition_seed_that_equals_the_seed_stays_in_its_group(marked):
    runs = [marked(0.5, method="fedavg", seed=seed) for seed in range(3)]
    runs += [marked(0.6, method="fedavg", seed=seed, partition_seed=1) for seed in range(3)]
    groups = compare(runs)["groups"]
    assert [group["seeds"] for group in groups] == [[0, 1, 2], [0, 1, 2]]
