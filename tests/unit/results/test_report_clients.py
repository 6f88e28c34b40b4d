"""What the report says about clients: the spread of their accuracies, and who gave no update."""

import pytest

from fedapp.results.report.report import report_html
from fedapp.results.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path, "one", {"method": "fedper", "num-rounds": 2})


def log(run, number, **more):
    fixed = {"round": number, "seconds": 1.0, "clients": 3, "failed": 0, "accuracy": None}
    run.log_round({**fixed, **more})


def test_accuracies_are_a_distribution_over_the_clients_with_test_images(run):
    log(run, 1)
    assert "Accuracy of the clients" not in report_html(run)
    scores = {7: (0.5, 10), 0: (1.0, 10), 3: (0.0, 10), 2: (0.25, 0)}
    run.write_client_scores(
        1, {client: {"accuracy": a, "examples": n} for client, (a, n) in scores.items()}
    )
    assert list(run.client_scores()["clients"]) == ["0", "2", "3", "7"]
    page = report_html(run)
    assert "<h2>Accuracy of the clients</h2>" in page
    sentence = (
        "After round 1: 3 clients on their own test images, from 0.0 % to 100.0 % (median 50.0 %)."
    )
    assert f"<p>{sentence}</p>" in page
    assert f'aria-label="Distribution. {sentence}"' in page


def test_the_times_of_the_rounds_say_what_was_waiting_and_who_was_the_slowest(run):
    log(run, 1)
    assert "Time of the rounds" not in report_html(run)  # of an earlier version
    for number, client, seconds in ((2, 7, 1.5), (3, 7, 2.5), (4, 1, 0.5)):
        slow = {"slowest_client": client, "slowest_seconds": seconds}
        log(run, number, seconds=4.0, wait_seconds=3.0, test_seconds=0.8, **slow)
    page = report_html(run)
    sentence = "75 % of the time the server waited for clients, 20 % were tests, 5 % its own work."
    assert f"<p>{sentence}</p>" in page
    assert f'aria-label="Time of the rounds. {sentence}"' in page
    rows = page.split("Slowest clients")[-1]
    assert rows.index("in 2 rounds, up to 2.50 s") < rows.index("in 1 rounds, up to 0.50 s")


def test_clients_that_failed_or_came_too_late_are_drawn_by_round_with_the_reasons(run):
    log(run, 1, failures=[])
    assert "<h2>Failures</h2>" not in report_html(run)
    late = ["client 1: its node did not answer in time", "client 2: <b>lost"]
    log(run, 2, failed=2, late=1, failures=late)
    page = report_html(run)
    assert "<p>2 in 1 of 2 rounds; 1 were too late.</p>" in page
    assert "client 2: &lt;b&gt;lost" in page


def test_failed_evaluations_are_listed_apart_from_failed_clients(run):
    log(run, 1, failures=[], evaluation_failures=["client 1: its loss", "client 2: its loss"])
    page = report_html(run)
    assert "<p>Evaluations that failed: 2 in 1 of 1 rounds.</p>" in page
    assert "client 2: its loss" in page
    assert "Clients without an update" not in page
