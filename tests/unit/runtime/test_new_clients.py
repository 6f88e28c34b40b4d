"""Clients that never train: who is sampled, and whose accuracy counts where."""

import numpy as np
import pytest
from in_process import federate, settings

from fedapp import server_app
from fedapp.config.privacy import Budget
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.formatting import clients_headline
from fedapp.results.report.report import report_html
from fedapp.results.run_directory import RunDirectory
from fedapp.trained_models.personalise import personalise
from strategies.rounds.base import ClientStrategy
from strategies.rounds.client_evaluation import summarise_clients
from strategies.scaffold import CONTROL, Scaffold

RUN = settings(method="fedavg", participation=1.0, new_clients=3, client_eval_every=1)


def row(accuracy, examples=10):
    return {"accuracy": accuracy, "examples": float(examples), "loss": 1.0}


def test_only_the_first_clients_are_sampled():
    seen: set[int] = set()

    def note(strategy: ClientStrategy) -> None:
        seen.update(result.client for result in strategy.report.results)

    federate({**RUN, "participation": 0.5, "num-rounds": 8}, after_round=note)
    assert seen == set(range(7))
    final = federate({**RUN, "num-rounds": 1})[1].report
    assert [result.client for result in final.results] == list(range(7))
    assert sorted(final.scores) == list(range(10))  # all are tested


def test_half_of_seven_clients_are_four():
    report = federate({**RUN, "participation": 0.5, "num-rounds": 1})[1].report
    assert len(report.results) == 4


def test_accuracies_of_new_clients_are_apart():
    found = summarise_clients({0: row(0.8), 1: row(0.6), 2: row(0.1), 3: row(0.3)}, training=2)
    assert found["client_accuracy_mean"] == pytest.approx(0.7)
    assert (found["client_count"], found["client_worst"]) == (2, 1)
    assert found["client_new_accuracy_mean"] == pytest.approx(0.2)
    assert found["client_new_accuracy_std"] == pytest.approx(0.1)
    assert found["client_new_count"] == 2
    assert not [key for key in summarise_clients({0: row(0.8)}, training=1) if "new" in key]
    untested = summarise_clients({0: row(0.8), 1: row(0.0, 0)}, training=1)
    assert "client_new_count" not in untested


def test_a_run_and_its_personal_models_report_new_clients(tmp_path):
    values = {**RUN, "output-dir": str(tmp_path), "run-name": "run", "num-rounds": 2}
    server_app.run(InProcessGrid(values), values, "", 0.0)
    run = RunDirectory.load(tmp_path / "run")
    summary, last = run.summary(), run.rounds()[-1]
    assert summary["client_count"] == last["client_count"] == 7
    assert summary["client_new_count"] == 3
    scores = [each["accuracy"] for each in run.client_scores()["clients"].values()]
    assert summary["client_accuracy_mean"] == pytest.approx(np.mean(scores[:7]))
    assert summary["client_new_accuracy_mean"] == pytest.approx(np.mean(scores[7:]))
    assert clients_headline(summary)[-1][0] == "3 clients that never trained"
    assert "Client new accuracy mean" in report_html(run)
    tuned = personalise(run.path, {"finetune-epochs": 5, "finetune-lr": 0.1})
    assert (tuned["client_count"], tuned["client_new_count"]) == (7, 3)
    assert tuned["client_new_accuracy_mean"] > summary["client_new_accuracy_mean"]


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "fedexp", "fedgen", "fedper", "feddor"])
def test_a_server_counts_the_clients_that_train(method):
    run = {**RUN, "method": method, "num-rounds": 2}
    _, strategy, _ = federate(run)
    assert strategy.federation.training_clients == 7
    losses = [result.loss for result in strategy.report.results]
    assert len(losses) == 7
    all_train = federate({**run, "new-clients": 0})[1].report.results
    assert losses != [result.loss for result in all_train[:7]]


def test_scaffold_divides_by_the_clients_that_train(monkeypatch):
    """With all of them in its first round, c is the mean of their changes."""
    seen: list[dict[str, np.ndarray]] = []
    original = Scaffold.use_means

    def use_means(self, means):
        seen.append(means[CONTROL])
        original(self, means)

    monkeypatch.setattr(Scaffold, "use_means", use_means)
    _, strategy, _ = federate({**RUN, "method": "scaffold", "num-rounds": 1})
    for name, array in strategy.kept.items():
        np.testing.assert_array_equal(array, seen[0][name])


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_new_clients_of_methods_that_keep_models_are_tested_afterwards_too(method, tmp_path):
    values = {**RUN, "method": method, "output-dir": str(tmp_path), "run-name": "run"}
    values |= {"state-dir": str(tmp_path / "states"), "keep-state": True}
    server_app.run(InProcessGrid(values), values, "", 0.0)
    summary = RunDirectory.load(tmp_path / "run").summary()
    again = personalise(tmp_path / "run", {})
    assert again["client_new_count"] == 3
    for name in ("client_accuracy_mean", "client_new_accuracy_mean"):
        assert again[name] == summary[name]
    assert list(personalise(tmp_path / "run", {}, client=9)["clients"]) == [9]


def test_new_clients_do_not_hide_the_others_in_the_privacy_budget():
    private = {"dp-clip": 1.0, "dp-noise": 1.0, "weights": "uniform", "dp-delta": 1e-3}
    budget = Budget.of(parse_config({**RUN, **private, "participation": 0.5}))
    assert (budget.clients, budget.cohort) == (7, 4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"new_clients": 10}, "'new-clients' is 10 but must be less than num-clients"),
        ({"min_replies": 8}, "min-replies is 8 but only 7 clients are sampled"),
        ({"attackers": 7}, "must be less than num-clients - new-clients"),
    ],
)
def test_clients_that_do_not_train_do_not_count(changes, sentence):
    values = {key.replace("_", "-"): value for key, value in changes.items()}
    with pytest.raises(UserError, match=sentence):
        parse_config({**RUN, **values})
