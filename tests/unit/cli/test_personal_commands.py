"""`fedapp traffic` and `fedapp features`, on real runs."""

import json

import pytest
from in_process import ROOT, settings
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.rng import sample_clients
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory
from fedapp.results.traffic import accuracy_against_traffic, traffic_row
from fedapp.trained_models.feature_map import features_of

QUICK = {"num_clients": 4, "partition": "dirichlet", "participation": 1.0, "feature_dim": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs that kept the models of all clients, of those that were drawn, or of nobody."""
    folder = tmp_path_factory.mktemp("runs")
    states = str(tmp_path_factory.mktemp("states"))
    found = {}
    for name, method, changes in (
        ("feddor", "feddor", {}),
        ("fedproto", "fedproto", {}),
        ("drawn", "fedgh", {"participation": 0.25, "eval_when": "after-download"}),
        ("gone", "feddor", {"keep_state": False}),
    ):
        usual = {**QUICK, "keep_state": True, "num_rounds": 2}
        config = settings(
            method=method, state_dir=states, output_dir=str(folder), run_name=name,
            **{**usual, **changes},
        )  # fmt: skip
        assert run_in_process(ROOT, config, Resources(nodes=4)) == 0
        found[name] = RunDirectory.load(folder / name)
    return found


def test_traffic_counts_what_was_sent_and_feddor_sends_less_than_fedproto(runs):
    feddor, fedproto = traffic_row(runs["feddor"]), traffic_row(runs["fedproto"])
    rows = runs["feddor"].rounds()
    assert feddor["messages_mb"] == pytest.approx(
        sum(row["bytes_up"] + row["bytes_down"] for row in rows) / 1e6
    )
    assert feddor["eval_mb"] == pytest.approx(
        sum(row["eval_bytes_up"] + row["eval_bytes_down"] for row in rows) / 1e6
    )
    assert all(row["eval_bytes_down"] > 4 * 10 * (4 * 16 + 8) for row in rows)  # the table, to all
    assert all(row["eval_bytes_up"] > 4 * 8 * 5 for row in rows)  # five scores of four clients
    assert feddor["client_up_kb"] < fedproto["client_up_kb"]
    assert feddor["up_kb_per_round"] < fedproto["up_kb_per_round"]
    width, most = 16, 10
    assert feddor["client_up_kb"] <= most * (4 * width + 8) / 1e3


def test_the_traffic_command_prints_a_table_json_and_a_plot(runs, tmp_path):
    paths = [str(runs[name].path) for name in ("feddor", "fedproto")]
    plot = tmp_path / "new" / "traffic.png"
    shown = CliRunner().invoke(cli.app, ["traffic", *paths, "--plot", str(plot)])
    assert shown.exit_code == 0, shown.output
    assert "fedproto" in shown.output
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = CliRunner().invoke(cli.app, ["traffic", *paths, "--json"])
    assert [len(row["by_round"]) for row in json.loads(printed.stdout)] == [2, 2]


def test_the_ticks_of_the_traffic_plot_are_plain_numbers(runs):
    figure = accuracy_against_traffic([runs["feddor"], runs["fedproto"]])
    figure.draw_without_rendering()
    axis = figure.axes[0].xaxis
    ticks = [
        label.get_text()
        for which in ("major", "minor")
        for label in axis.get_ticklabels(which=which)
    ]
    assert any(ticks)
    assert all(float(tick) > 0 for tick in ticks if tick)


def test_the_features_command_maps_the_stored_models(runs):
    features = features_of(runs["feddor"])
    assert features.rows.shape == (len(features.labels), 16)
    assert features.prototypes.shape == (10, 16)
    assert features.clients == (0, 1, 2, 3)
    shown = CliRunner().invoke(cli.app, ["features", str(runs["feddor"].path)])
    assert shown.exit_code == 0, shown.output
    assert "models of 4 of 4 clients" in shown.output
    assert (runs["feddor"].path / "features.png").read_bytes().startswith(b"\x89PNG")


def test_clients_that_were_never_drawn_are_not_on_the_map(runs):
    drawn = {client for r in (1, 2) for client in sample_clients(0, r, 4, 0.25)}
    features = features_of(runs["drawn"])
    assert features.clients == tuple(sorted(drawn))
    assert len(drawn) < 4


def test_features_of_own_images_cannot_be_mapped(tmp_path):
    keys = {"dataset": "images", "partition": "own", "classes": "a, b", "num_clients": 2}
    config = parse_config(settings(method="feddor", **keys)).flat()
    run = RunDirectory.create(tmp_path, "own", config)
    with pytest.raises(UserError, match="'own' have partition 'own': their images and models stay"):
        features_of(run)


def test_models_that_were_not_kept_are_asked_for(runs):
    with pytest.raises(UserError, match="keep-state"):
        features_of(runs["gone"])
