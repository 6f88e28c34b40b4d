"""Which model and which clients a measure is of, and what a later measuring leaves."""

from types import SimpleNamespace

import pytest
from in_process import settings, train_one

from fedapp.analysis.measures.figures import _feature_norm
from fedapp.analysis.measures.views import view_of
from fedapp.analysis.rounds import cohort_of
from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.resolve import parse_config
from fedapp.methods.row import CLIENT_MEAN
from fedapp.results import measures_file as store
from fedapp.results.outcome import fully_tested
from fedapp.results.plots.measure_plots import describe_choice
from fedapp.runtime.callbacks.standard import Evaluate
from fedapp.runtime.process.global_model import load_weights

EVERY = {"checkpoint_every": 1, "checkpoint_keep": 0, "num_rounds": 3}


@pytest.mark.usefixtures("few_images")
@pytest.mark.parametrize("method", ["fedexp", "feddyn"])
def test_the_measured_global_model_is_the_tested_one(method, tmp_path):
    run = train_one(tmp_path, method=method, analyses="norms", keep_state=True, **EVERY)
    during = store.read(run)[-1]["measures"]["norms"]["model"]["feature_global"]
    saved = SavedRun(run)
    load_weights(saved.process.model, run)  # the model that the method evaluates
    assert during == pytest.approx(_feature_norm(view_of(saved.process)))
    after = saved.measure(3, ["norms"], 1)["measures"]["norms"]["model"]["feature_global"]
    assert after == pytest.approx(during)


def test_some_clients_of_a_cohort_are_drawn_at_random():
    config = parse_config(settings(num_clients=20, participation=1.0))
    assert cohort_of(config, 1, 0) == cohort_of(config, 1, 20) == list(range(20))
    drawn = [cohort_of(config, server_round, 5) for server_round in (1, 2)]
    assert [len(set(clients)) for clients in drawn] == [5, 5]
    assert all(clients == sorted(clients) for clients in drawn)
    assert drawn[0] == cohort_of(config, 1, 5) != drawn[1]
    assert max(map(max, drawn)) > 10


@pytest.mark.usefixtures("few_images")
def test_a_measure_of_the_global_model_leaves_what_was_trained_for_others(tmp_path):
    run = train_one(tmp_path, method="fedavg", analyses="alignment", **EVERY)
    before = store.read(run)[-1]
    assert before["clients"] == [0, 1, 2, 3]
    SavedRun(run).measure(3, ["four-factors"], 0)
    after = store.read(run)[-1]
    assert after["clients"] == before["clients"]
    assert after["training_seconds"] == before["training_seconds"] > 0
    assert set(after["measures"]) == {"alignment", "four-factors"}


@pytest.mark.usefixtures("few_images")
def test_the_model_before_a_round_that_was_never_run_is_named_so(tmp_path):
    run = train_one(tmp_path, method="fedavg", **{**EVERY, "checkpoint_every": 0})
    saved = SavedRun(run)
    assert saved.measurable() == [4]
    entry = saved.measure(4, ["four-factors"], 1)
    assert entry["measures"]["four-factors"]["before"]
    assert describe_choice("four-factors", [entry]).startswith("four-factors in round 4: ")


def test_new_clients_without_an_accuracy_leave_a_round_whole():
    report = SimpleNamespace(unevaluated=[1, 9], client_accuracy={})
    run = SimpleNamespace(
        last_round=3, config=SimpleNamespace(eval_every=1, training_clients=9),
        process=SimpleNamespace(
            method=SimpleNamespace(accuracy=CLIENT_MEAN, has_global_model=False)
        ),
        strategy=SimpleNamespace(report=report),
    )  # fmt: skip
    row = {"round": 3}
    Evaluate().round_ends(run, row)
    assert row["unevaluated"] == [1]
    report.unevaluated = [9]
    whole = {"round": 3}
    Evaluate().round_ends(run, whole)
    assert "unevaluated" not in whole
    rows = [{**whole, "accuracy": 0.5}, {**row, "accuracy": 0.6}]
    assert fully_tested(rows) == rows[:1]
