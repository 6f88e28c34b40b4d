"""What `fedapp doctor` says that a configuration protects."""

import json

import pytest
from in_process import ROOT, settings
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.config.privacy import Budget
from fedapp.config.resolve import parse_config
from fedapp.engines.deployment.protections import protections

PRIVATE = {"method": "fedavg", "weights": "uniform", "dp_clip": 1.0, "participation": 1.0}


def found(**changes):
    return {check.name: check.found for check in protections(parse_config(settings(**changes)))}


def test_nothing_is_on_by_default_and_it_says_what_that_means():
    said = found()
    assert all(text.startswith("off: ") for text in said.values())
    assert list(said) == ["secure aggregation", "differential privacy", "robust aggregation"]


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        (
            {"secure_aggregation": "pairwise"},
            "secure aggregation",
            "on: the server sees sums of models only; 67 % of",
        ),
        (PRIVATE, "differential privacy", "no noise: updates are cut to norm 1"),
        (
            {**PRIVATE, "dp_noise": 2.0, "aggregation": "median"},
            "differential privacy",
            "not counted: noise with aggregation 'median'",
        ),
        ({"method": "fedavg", "aggregation": "krum"}, "robust aggregation", "on: krum"),
    ],
)
def test_what_is_on_is_said_with_its_measure(changes, name, words):
    assert found(**changes)[name].startswith(words)


def test_the_budget_is_that_of_the_rounds_that_it_allows():
    said = found(**PRIVATE, dp_noise=20.0, num_rounds=50)["differential privacy"]
    assert f"after 50 rounds epsilon {Budget(20.0, 10, 10, 1e-5).epsilon(50):.3g} at delta" in said
    limited = found(**PRIVATE, dp_noise=20.0, num_rounds=50, dp_epsilon=1.5)
    rounds = Budget(20.0, 10, 10, 1e-5, 1.5).affordable(50)
    assert f"after {rounds} rounds" in limited["differential privacy"]
    assert "(limit 1.5)" in limited["differential privacy"]


def test_the_doctor_says_it_beside_its_checks():
    command = ["doctor", "--app", str(ROOT), "-c", "secure-aggregation='pairwise'", "--json"]
    done = CliRunner().invoke(cli.app, command)
    rows = {row["check"]: row["found"] for row in json.loads(done.stdout)}
    assert rows["secure aggregation"].startswith("on: ")
    assert "devices" in rows
