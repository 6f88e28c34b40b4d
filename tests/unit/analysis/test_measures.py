"""Measures of real rounds: local models trained again are those of the run, bit for bit.

A federation of a few clients on the digits that come with scikit-learn, in this process; then every
measure, its files, its plots, and what a user who asks for the impossible is told.
"""

import csv
import json
import re
import time

import numpy as np
import pytest
from in_process import settings
from typer.testing import CliRunner

from fedapp import server_app
from fedapp.analysis.formulas.accuracy import out_local_accuracy
from fedapp.analysis.measures import pictures as drawings
from fedapp.analysis.measures.pictures import FeatureMap, LocalFeatureMap
from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.measures.views import Local, view_of
from fedapp.analysis.rounds import RoundModels, measure_round
from fedapp.analysis.saved_runs import SavedRun
from fedapp.cli.app import app
from fedapp.config.measures import FEATURES_OF, WORDS, measures_of_models
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results import measures_file as store
from fedapp.results.class_accuracy import class_accuracy_measures
from fedapp.results.plots import measure_plots
from fedapp.results.run_directory import RunDirectory

PICTURES = (
    "landscape",
    "t-sne",
    "t-sne-locals",
    "unit-circle",
)  # slow, or of models with few features
COUNTS = np.full(10, 7)  # images of each class of a cohort
QUICK = "local-accuracy alignment drift four-factors norms weight-alignment divergence"


@pytest.fixture(scope="module")
def run(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("runs")
    config = settings(
        method="feddr+", num_rounds=3, participation=0.3, output_dir=str(folder), run_name="kept",
        checkpoint_every=1, checkpoint_keep=0, analyses="forgetting alignment", analysis_every=2,
        analysis_clients=2,
    )  # fmt: skip
    with pictures():
        server_app.run(InProcessGrid(config, 2), config, "", time.monotonic())
    return RunDirectory.load(folder / "kept")


@pytest.fixture(scope="module")
def saved(run):
    return SavedRun(run)


def test_a_run_measures_when_due_and_after_the_last_round(run):
    entries = store.read(run)
    assert [entry["round"] for entry in entries] == [2, 3]
    assert all(len(entry["clients"]) == 2 for entry in entries)
    assert all(set(entry["measures"]) == {"alignment"} for entry in entries)
    assert isinstance(run.summary()["forgetting"], float)
    assert (run.path / "analysis" / "alignment.png").stat().st_size > 10_000
    assert "Measurements" in (run.path / "report.html").read_text()


def test_measuring_during_a_run_and_after_it_gives_the_same_figures(run, saved):
    during = store.read(run)[0]["measures"]["alignment"]
    after = measure_round(saved.process, round_models(saved, 2, clients=2), ["alignment"])
    assert json.loads(json.dumps(after["measures"]["alignment"])) == during


def test_local_models_trained_again_average_to_the_model_that_the_run_kept(saved):
    models = round_models(saved, 3)
    total, weight = None, 0
    for client in models.clients:
        numpy_client = saved.process.client(client)
        arrays = [models.start.arrays[name] for name in numpy_client.shared]
        own, examples, _ = numpy_client.fit(arrays, {"server_round": 3, "lr": models.lr})
        parts = [examples * array.astype(np.float64) for array in own]
        total = parts if total is None else [a + b for a, b in zip(total, parts, strict=True)]
        weight += examples
    for name, array in zip(saved.process.slot.shared, total, strict=True):
        np.testing.assert_allclose(array / weight, models.result[name], rtol=1e-6, atol=1e-7)


def test_every_measure_gives_finite_figures_and_puts_the_model_back(saved):
    before = {k: v.clone() for k, v in saved.process.model.state_dict().items()}
    found = measure_round(saved.process, round_models(saved, 3, clients=2), QUICK.split())
    for name, tensor in saved.process.model.state_dict().items():
        assert tensor.equal(before[name]), name
    for norm in ("l1", "l2"):  # two clients may be equally far
        del found["measures"]["divergence"]["model"][f"pearson_{norm}"]
    for word, measure in found["measures"].items():
        scalars = [*measure["mean"].values(), *measure["model"].values()]
        numbers = [value for value in scalars if isinstance(value, float)]
        assert numbers, word
        assert np.isfinite(numbers).all(), (word, measure)
    alignment = found["measures"]["alignment"]["mean"]
    assert alignment["observed_gap"] > 0 > alignment["unobserved_gap"]  # two classes of ten


def test_gap_is_local_minus_received(saved):
    found = measure_round(saved.process, round_models(saved, 2, clients=1), ["alignment"])
    (row,) = found["measures"]["alignment"]["clients"]
    assert row["observed_gap"] == pytest.approx(row["observed"] - row["observed_received"])


def test_measures_of_the_global_model_train_nobody(saved):
    found = measure_round(saved.process, round_models(saved, 2), ["four-factors"])
    assert found["clients"] == []


def test_a_round_whose_model_was_not_kept_is_refused_in_words(saved):
    with pytest.raises(UserError, match=r"round 9 .* round 8 was not kept.*checkpoint-keep=0"):
        saved.measure(9, ["alignment"], 1)


def test_the_first_round_starts_from_the_seeds_model(saved):
    assert saved.measurable() == [1, 2, 3]
    found = measure_round(saved.process, round_models(saved, 1, clients=1), ["divergence"])
    mean = found["measures"]["divergence"]["mean"]
    assert mean["weight_divergence_l1"] > mean["weight_divergence_l2"] > 0
    assert mean["distribution_distance_l1"] > mean["distribution_distance_l2"] > 0


def test_store_keeps_other_measures_of_a_round_and_writes_a_table(tmp_path):
    kept = RunDirectory.create(tmp_path, "r", {"method": "fedavg"})
    part = {"clients": [{"client": 4, "a": 0.5}], "mean": {"a": 0.5}, "std": {"a": float("nan")}}
    store.add(kept, {"round": 2, "measures": {"drift": part}})
    entries = store.add(kept, {"round": 2, "measures": {"norms": {"model": {"b": 2.0}}}})
    assert list(entries[0]["measures"]) == ["drift", "norms"]
    assert store.figures(entries[0]) == {"drift/a": 0.5, "norms/b": 2.0}
    lines = list(csv.reader((kept.path / "analysis.csv").open()))
    assert ["2", "drift", "4", "a", "0.5"] in lines
    store.truncate(kept, 1)
    assert store.read(kept) == []


def test_every_measure_has_a_plot_for_one_run_and_for_two(saved):
    words = [word for word in MEASURES if word not in PICTURES]
    one = store_form(measure_round(saved.process, round_models(saved, 2, clients=2), words))
    two = store_form(measure_round(saved.process, round_models(saved, 3, clients=2), words))
    for runs in ([("a", [one])], [("a", [one, two])], [("a", [one]), ("b", [two])]):
        figures = measure_plots.drawn(runs)
        assert set(figures) == set(words)
        for axes in (axes for figure in figures.values() for axes in figure.axes):
            assert axes.get_ylabel() or axes.get_label() == "<colorbar>"


def test_the_landscape_reads_only_the_images_that_it_draws(saved, monkeypatch):
    """Of ImageNet-100 the whole test set would take three gigabytes."""
    data, read = saved.process.data, []
    batches = data.test_batches

    def counted(*members):
        for images, labels in batches(*members):
            read.extend(labels.tolist())
            yield images, labels

    monkeypatch.setattr(data, "test_batches", counted)
    monkeypatch.setattr(drawings, "LANDSCAPE_IMAGES", 40)
    measured = drawings.Landscape(saved.process, None, None, COUNTS).of_model()
    assert len(read) == 40
    assert len(set(read)) > 5  # of many classes
    assert np.isfinite(measured["slice"]).all()


def test_pictures_are_measured_and_drawn(saved):
    entry = store_form(
        measure_round(saved.process, round_models(saved, 2, clients=1), ["t-sne", "landscape"])
    )
    points = entry["measures"]["t-sne"]["model"]["points"]
    assert [len(p) for p in points.values()] == [300, 300]
    flatness = entry["measures"]["landscape"]["model"]["flatness"]
    assert flatness[0]["loss"] < flatness[-1]["loss"]
    assert set(measure_plots.drawn([("a", [entry])])) == {"t-sne", "landscape"}
    both = measure_plots.drawn([("x/a", [entry]), ("b", [entry])])
    assert set(both) == {"t-sne x/a", "t-sne b", "landscape"}
    assert "b" in both["t-sne b"].get_suptitle()
    plots_by_name = measure_plots.plots_by_name([("x/a", [entry]), ("b", [entry])])
    assert plots_by_name["t-sne b"] == ("t-sne", [("b", [entry])])
    paths = measure_plots.write_figures({"t-sne x/a": both["t-sne x/a"]}, saved.run.path / "all")
    assert [path.name for path in paths] == ["t-sne_x_a.png"]


def test_all_local_models_are_on_one_map_where_the_other_shows_four(saved):
    view = view_of(saved.process)
    maps = [kind(saved.process, view, None, COUNTS) for kind in (FeatureMap, LocalFeatureMap)]
    for client in range(6):
        for measure in maps:
            measure.of_client(Local(client, view, view, np.ones(10)))
    assert [len(measure.seen) for measure in maps] == [5, 7]
    entry = store_form(
        measure_round(saved.process, round_models(saved, 2, clients=2), ["t-sne-locals"])
    )
    points = entry["measures"]["t-sne-locals"]["model"]["points"]
    assert [len(p) for p in points.values()] == [150] * 3
    assert len(entry["measures"]["t-sne-locals"]["model"]["labels"]) == 150
    figures = measure_plots.drawn([("a", [entry]), ("b", [entry])])
    assert set(figures) == {"t-sne-locals a", "t-sne-locals b"}


@pytest.mark.parametrize("count", [3, 21])
def test_the_map_of_local_models_names_each_one_or_has_a_scale(count):
    names = ["global", *(f"client {client}" for client in range(count))]
    model = {"points": {n: [[i, 0.0], [i, 1.0]] for i, n in enumerate(names)}, "labels": [0, 2]}
    (figure,) = measure_plots.drawn(
        [("a", [{"round": 1, "measures": {"t-sne-locals": {"model": model}}}])]
    ).values()
    above, below = figure.axes[:2]
    assert [axes.get_title(loc="left") for axes in (above, below)] == ["By local model", "By class"]
    assert len(above.collections) == count + 1
    colors = {tuple(drawn.get_facecolor()[0]) for drawn in above.collections[:-1]}
    assert len(colors) == count
    legend = above.get_legend()
    named = [text.get_text() for text in legend.get_texts()] if legend else []
    assert named == ([*names[1:], "global"] if count == 3 else [])
    scales = {axes.get_xlabel() for axes in figure.axes}
    assert any("order of client numbers" in label for label in scales) == (count == 21)
    assert below.collections[0].get_array().tolist() == [0, 2] * (count + 1)


def test_classes_without_test_images_leave_measures_finite():
    rows = [{"class_accuracy": [0.5, None, 0.5]}, {"class_accuracy": [0.25, None, 0.5]}]
    found = class_accuracy_measures("forgetting consistency", rows)
    assert found["forgetting"] == pytest.approx(0.125)
    assert 0.9 < found["consistency"] < 1
    accuracy = np.array([0.5, np.nan, 0.8])
    assert out_local_accuracy(accuracy, np.array([2, 1, 1])) == pytest.approx(0.68)  # 2 : 3


def test_command_measures_and_prints_json(run):
    result = CliRunner().invoke(
        app, ["analyse", str(run.path), "-m", "norms", "--clients", "1", "--json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["feddr+"][-1]
    assert found["measures"]["norms"]["model"]["weight_global"] == pytest.approx(1)


def test_command_prints_the_round_that_was_asked_for(run):
    asked = [str(run.path), "-m", "weight-alignment", "--clients", "1"]
    CliRunner().invoke(app, ["analyse", *asked])  # of the newest round, which is a later one
    shown = CliRunner().invoke(app, ["analyse", *asked, "--round", "2"]).stdout
    assert re.search(r"round\W+2\W", shown)
    assert "weight-alignment/" in shown


def test_a_damaged_file_is_named_and_stays(tmp_path):
    run = RunDirectory.create(tmp_path, "damaged", settings())
    for content in ("{", "{}", '{"rounds": 3}'):
        (run.path / "analysis.json").write_text(content)
        with pytest.raises(UserError, match=r"analysis.json has no list of measured rounds"):
            store.add(run, {"round": 1, "measures": {}})
        assert (run.path / "analysis.json").read_text() == content


def test_an_unknown_measure_is_refused_in_words():
    with pytest.raises(UserError, match=r"measure 'alignmnt' does not exist.*'alignment'"):
        parse_config(settings(analyses="alignmnt"))
    assert measures_of_models("forgetting alignment") == ["alignment"]
    assert set(MEASURES) < set(WORDS)


def round_models(saved: SavedRun, server_round: int, clients: int = 0) -> RoundModels:
    from fedapp.analysis.rounds import cohort_of

    result = saved.starts.get(server_round)
    return RoundModels(
        server_round, saved.starts[server_round - 1](), result and result().arrays,
        cohort_of(saved.config, server_round, clients), saved.config.lr_at(server_round),
    )  # fmt: skip


def store_form(entry):
    from fedapp.core.files import json_text

    return json.loads(json_text(entry))


def test_a_method_without_a_global_model_is_refused_in_words():
    with pytest.raises(UserError, match=r"needs a global model, but method 'fedper' has none"):
        parse_config(settings(method="fedper", analyses="four-factors"))
    parse_config(settings(method="scaffold", analyses="four-factors alignment forgetting"))


def test_the_configuration_knows_the_words_of_all_measures():
    assert list(FEATURES_OF) == list(MEASURES)
