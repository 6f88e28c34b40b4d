"""Features on the unit circle: the layer that makes them two, their density, and the picture."""

import json
import time

import numpy as np
import pytest
import torch
from in_process import settings
from typer.testing import CliRunner

from fedapp import server_app
from fedapp.analysis.formulas.unit_circle import BANDWIDTH, GRID, STEP, angles, density
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.models.model import build_model
from fedapp.results.plots.measure_plots import drawn

PEAK = 1 / (BANDWIDTH * np.sqrt(2 * np.pi))


def at(degrees: float, found: np.ndarray) -> float:
    return float(found[list(GRID).index(degrees)])


def test_angles_are_degrees_against_the_first_axis_whatever_the_length():
    features = np.array([[1, 0], [3, 3], [0, 2], [-1, 0], [0, -0.5], [1, -1]])
    assert angles(features).tolist() == [0, 45, 90, 180, -90, -45]


def test_density_is_a_gaussian_around_each_angle():
    found = density(np.array([0.0]))
    assert at(0, found) == pytest.approx(PEAK)
    assert at(10, found) == at(-10, found) == pytest.approx(PEAK * np.exp(-2))
    two = density(np.array([0.0, 90.0]))
    assert at(90, two) == pytest.approx(PEAK / 2)


def test_the_circle_has_no_ends():
    seam = density(np.array([179.0, -179.0]))
    assert at(-180, seam) == pytest.approx(PEAK * np.exp(-0.5 / BANDWIDTH**2))
    assert at(178, seam) == pytest.approx(at(-178, seam))
    for degrees in (0.0, 33.3, 180.0, -179.5):
        assert density(np.array([degrees])).sum() * STEP == pytest.approx(1)
    assert np.isnan(density(np.array([]))).all()


def test_a_bottleneck_is_a_linear_layer_between_the_same_body_and_its_head():
    plain, narrow = (
        build_model("cnn", "linear", 1, 8, 10, seed=3, bottleneck=width) for width in (0, 2)
    )
    images = torch.rand(4, 1, 8, 8)
    features, logits = narrow(images)
    assert (features.shape, logits.shape) == ((4, 2), (4, 10))
    wide = plain(images)[0]
    layer = narrow.bottleneck
    torch.testing.assert_close(features, wide @ layer.weight.T + layer.bias)
    more = set(narrow.state_dict()) - set(plain.state_dict())
    assert more == {"bottleneck.weight", "bottleneck.bias"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedavg", "analyses": "unit-circle"}, r"train with bottleneck=2 \(here: 0\)"),
        ({"method": "fedavg", "analyses": "unit-circle", "bottleneck": 3}, "train with bottleneck"),
        ({"method": "feddr+", "bottleneck": 2}, r"at least 9 features .* has 2 .*'bottleneck'"),
        ({"method": "feddor", "bottleneck": 2}, "set 'feature-dim' instead"),
    ],
)
def test_what_cannot_work_is_refused_in_words(change, words):
    with pytest.raises(UserError, match=words):
        parse_config(settings(**change))


def test_a_run_with_two_features_is_measured_drawn_and_analysed(tmp_path, pictures):
    config = settings(
        method="fedavg", bottleneck=2, analyses="unit-circle", analysis_clients=5,
        output_dir=str(tmp_path), run_name="two", num_rounds=1,
    )  # fmt: skip
    with pictures():
        server_app.run(InProcessGrid(config), config, "", time.monotonic())
    assert (tmp_path / "two" / "analysis" / "unit-circle.png").stat().st_size > 10_000
    arguments = ["analyse", str(tmp_path / "two"), "-m", "unit-circle drift", "--json"]
    done = CliRunner().invoke(app, [*arguments, "--plots", str(tmp_path / "plots")])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["fedavg"][-1]["measures"]["unit-circle"]["model"]
    assert len(found["densities"]) == len(found["observed"]) == 5  # the global model and four
    for name, rows in found["densities"].items():
        assert np.sum(rows, axis=1) * STEP == pytest.approx(1, abs=1e-3), name
    assert len(found["observed"]["global"]) == 10
    assert len(found["observed"][list(found["observed"])[1]]) <= 2  # shards
    assert (tmp_path / "plots" / "unit-circle.png").is_file()


def test_a_run_of_a_wide_model_is_refused_before_anything_is_trained(tmp_path):
    config = settings(method="fedavg", output_dir=str(tmp_path), run_name="wide", num_rounds=1)
    server_app.run(InProcessGrid(config), config, "", time.monotonic())
    done = CliRunner().invoke(app, ["analyse", str(tmp_path / "wide"), "-m", "unit-circle"])
    assert isinstance(done.exception, UserError)
    assert "train with bottleneck=2" in str(done.exception)


@pytest.mark.parametrize("classes", [3, 30])
def test_the_plot_names_panels_units_and_classes(classes):
    rows = [density(np.array([10.0 * c])).tolist() for c in range(classes)]
    rows[1] = [None] * len(GRID)  # a class without test images
    models = {"global": rows, "client 7": rows}
    entry = {"densities": models, "observed": {"global": list(range(classes)), "client 7": [0]}}
    run = ("a", [{"round": 1, "measures": {"unit-circle": {"model": entry}}}])
    (figure,) = drawn([run]).values()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title for title in titles if title] == ["global", "client 7"]
    labels = {axes.get_xlabel() for axes in figure.axes}
    assert "Angle of the feature (degrees)" in labels
    assert [len(legend.get_texts()) for legend in figure.legends] == ([3] if classes == 3 else [])
    assert ("Class" in labels) == (classes == 30)
