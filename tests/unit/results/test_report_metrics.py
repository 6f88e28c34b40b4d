"""The report draws what a method, a callback or privacy adds to the rounds, and nothing else."""

import json
import re

import pytest
from in_process import train_one

from fedapp.results.report.report import own_metrics, report_html


def headings(html: str) -> list[str]:
    return re.findall("<h2>(.*?)</h2>", html)


@pytest.mark.parametrize(
    ("method", "changes", "added"),
    [
        ("fedavg", {"client_eval_every": 1}, []),
        ("ditto", {}, []),
        ("fedexp", {}, ["step_length"]),
        ("feddor", {}, ["prototype_cosine_largest", "prototype_cosine_mean", "server_epochs"]),
        ("fedavg", {"dp_clip": 0.1, "dp_noise": 1.0, "weights": "uniform"}, ["epsilon"]),
    ],
)
def test_the_numbers_that_a_method_adds_are_known(tmp_path, method, changes, added):
    run = train_one(tmp_path, method=method, **changes)
    assert own_metrics(run.rounds()) == added
    assert ("Further metrics" in headings(report_html(run))) == bool(added)


def test_each_of_them_has_a_curve_with_its_first_and_last_value(tmp_path):
    run = train_one(tmp_path)
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"largest_share": 0.25, "said": "low", "only_once": 1.0}
    lines[1] |= {"largest_share": 0.5, "said": "high"}
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run.path / "metrics.jsonl").write_text(text)
    html = report_html(run)
    assert "Largest share by round: from 0.2500 in round 1 to 0.5000 in round 2." in html
    assert "Only once by round" not in html
    assert "Said by round" not in html
