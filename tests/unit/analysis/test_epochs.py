"""Accuracy during local training: what is seen after each epoch, and that nobody notices."""

import time
from dataclasses import replace

import numpy as np
import pytest
from in_process import InProcessGrid, settings

from clients.training.model_slot import ClientData
from fedapp import server_app
from fedapp.analysis.measures.epochs import watched
from fedapp.analysis.rounds import RoundModels, cohort_of, measure_round
from fedapp.analysis.saved_runs import SavedRun
from fedapp.results.plots.measure_plots import drawn
from fedapp.results.run_directory import RunDirectory

EPOCHS = 3


def round_of(folder, **changes):
    """Train one round, and return its node and what it started from."""
    keys = {"method": "fedavg", "num_rounds": 1, "local_epochs": EPOCHS, **changes}
    config = settings(output_dir=str(folder), run_name="run", **keys)
    server_app.run(InProcessGrid(config, 2), config, "", time.monotonic())
    saved = SavedRun(RunDirectory.load(folder / "run"))
    models = RoundModels(
        1, saved.starts[0](), saved.starts[1]().arrays, cohort_of(saved.config, 1, 0),
        saved.config.lr_at(1),
    )  # fmt: skip
    return saved, models


def test_the_global_model_is_measured_for_all_clients_of_the_round(tmp_path):
    saved, models = round_of(tmp_path)
    every, one = (
        measure_round(saved.process, each, ["local-accuracy"])["measures"]["local-accuracy"]
        for each in (models, replace(models, clients=models.clients[:1]))
    )
    assert len(one["clients"]) == 1
    assert every["model"] == one["model"]
    assert set(one["model"]) == {"in_global", "out_global"}


@pytest.mark.parametrize(("weights", "stochastic"), [("size", 0), ("uniform", 0), ("size", 1)])
def test_it_goes_from_the_received_model_to_the_local_ones_and_their_mean(
    tmp_path, weights, stochastic
):
    run = {"weights": weights, "stochastic_every": stochastic}
    saved, models = round_of(tmp_path, partition="lda", alpha=0.3, **run)
    found = measure_round(saved.process, models, ["local-training", "local-accuracy"])["measures"]
    curves, ends = found["local-training"], found["local-accuracy"]
    assert len(curves["clients"]) == len(models.clients) == 5
    for row, other in zip(curves["clients"], ends["clients"], strict=True):
        for name in ("in", "out"):
            assert row[f"{name}_local_0"] == other[f"{name}_received"]
            assert row[f"{name}_local_{EPOCHS}"] == other[f"{name}_local"]
        assert len({row[f"test_{epoch}"] for epoch in range(EPOCHS + 1)}) > 1
    names = {f"{n}_{e}" for n in ("in_local", "out_local", "test") for e in range(EPOCHS + 1)}
    assert set(curves["mean"]) == names
    assert set(curves["model"]) == {f"mean_{epoch}" for epoch in range(EPOCHS + 1)}
    accuracy = saved.run.rounds()[-1]["accuracy"]
    assert curves["model"][f"mean_{EPOCHS}"] == pytest.approx(accuracy, abs=1e-9)
    assert curves["model"]["mean_0"] == pytest.approx(curves["mean"]["test_0"])


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "fedntd"},
        {"method": "fedsol"},
        {"method": "fedcurv", "keep_state": True, "checkpoint_every": 1},
        {"method": "fedavg", "model": "resnet10", "bn": "running", "local_epochs": 2},
    ],
)
def test_watching_changes_no_bit_of_the_local_models(tmp_path, keys):
    saved, models = round_of(tmp_path, state_dir=str(tmp_path), **keys)
    models = replace(models, clients=models.clients[:1])
    plain, seen = (
        measure_round(saved.process, models, words)["measures"]["drift"]
        for words in (["drift"], ["drift", "local-training"])
    )
    assert plain == seen


def test_an_epoch_in_the_middle_is_the_run_with_fewer_epochs(tmp_path):
    saved, models = round_of(tmp_path / "long")
    found = measure_round(saved.process, models, ["local-training"])["measures"]["local-training"]
    less, fewer = round_of(tmp_path / "short", local_epochs=2)
    short = measure_round(less.process, fewer, ["local-training"])["measures"]["local-training"]
    for part in ("mean", "std", "model"):
        assert short[part].items() <= found[part].items()


def test_a_client_that_diverges_leaves_nothing_in_the_mean(tmp_path):
    saved, models = round_of(tmp_path)
    entry = measure_round(saved.process, replace(models, lr=1e12), ["local-training"])
    assert entry["diverged"] == list(models.clients)
    assert entry["measures"]["local-training"]["model"] == {}


def test_data_are_seen_between_the_epochs_of_the_first_training_only():
    log = []
    data = ClientData(
        training=lambda r: lambda: log.append(f"epoch of {r}") or [],
        tuning=None, examples=None, mixed=None, test=None, num_examples=1, class_counts=None,
        all_counts=None,
    )  # fmt: skip
    training = watched(data, 2, lambda: log.append("seen")).training
    epoch = training(7)
    epoch(), epoch()
    training(7)()  # a pass over the data after training, as FedCurv makes
    assert log == ["epoch of 7", "seen", "epoch of 7", "epoch of 7"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_plot_has_a_point_for_each_epoch_in_per_cent(count):
    values = {f"{n}_{e}": 0.5 + e / 100 for n in ("in_local", "out_local", "test") for e in (0, 1)}
    spread = dict.fromkeys(values, 0.6)  # a band does not leave 0 to 100 %
    measure = {"mean": values, "std": spread, "model": {"mean_0": 0.1, "mean_1": None}}
    entry = {"round": 4, "measures": {"local-training": measure}}
    (figure,) = drawn([(f"run {i}", [entry]) for i in range(count)]).values()
    assert [axes.get_ylabel() for axes in figure.axes] == ["Accuracy (%)"] * 3
    last = figure.axes[-1]
    assert last.get_xlabel() == "Local epochs done in the round"
    assert [line.get_ydata()[0] for line in last.lines] == [50, 10] * count
    assert np.isnan(last.lines[1].get_ydata()[1])
    assert last.dataLim.ymin >= 0
    texts = {text.get_text() for text in figure.legends[0].get_texts()}
    assert ("run 0" in texts) == (count > 1)
