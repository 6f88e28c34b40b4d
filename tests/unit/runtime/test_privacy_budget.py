"""The privacy budget of a run: counted in every file, over interruptions, and never exceeded."""

import json

import pytest
from in_process import federate, settings

from fedapp import server_app
from fedapp.config.privacy import Budget
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.server.privacy import last_round
from strategies.rounds.base import ClientStrategy

PRIVATE = {"method": "fedavg", "weights": "uniform", "dp_clip": 0.001, "lr_schedule": "constant"}
LEFT = Budget(4.0, 10, 5, 1e-5, limit=8.0)  # of what `train` spends in each round


@pytest.fixture
def train(tmp_path):
    """Return a function that trains run "one" and returns its directory."""

    def run(**changes) -> RunDirectory:
        values = settings(output_dir=str(tmp_path), run_name="one", **{**PRIVATE, **changes})
        server_app.run(InProcessGrid(values), values, "", 0.0)
        return RunDirectory.load(tmp_path / "one")

    return run


def test_epsilon_is_in_the_metrics_the_summary_and_the_log(train, pictures, caplog):
    with pictures():
        run = train(dp_noise=4.0)
    spent = [LEFT.epsilon(1), LEFT.epsilon(2)]
    assert [row["epsilon"] for row in run.rounds()] == spent
    summary = run.summary()
    assert (summary["epsilon"], summary["delta"], summary["dp_noise"]) == (spent[1], 1e-5, 4.0)
    log = caplog.text
    assert f"epsilon {spent[0]:.2f}" in log
    assert f"Privacy                     epsilon {spent[1]:.2f} at delta 1e-05" in log
    assert f"epsilon {spent[1]:.2f} at delta 1e-05" in (run.path / "report.html").read_text()


def test_a_run_without_noise_counts_nothing(train):
    run = train()
    assert "epsilon" not in run.summary()
    assert "epsilon" not in run.rounds()[0]
    assert run.privacy() == {}


def test_repeated_rounds_of_a_resumed_run_count_again(train, monkeypatch):
    aggregate = ClientStrategy.aggregate_train

    def interrupted(self, server_round, replies):
        if server_round == 4:
            raise KeyboardInterrupt
        return aggregate(self, server_round, replies)

    keys = {"dp_noise": 4.0, "num_rounds": 5, "checkpoint_every": 2}
    with monkeypatch.context() as patched:
        patched.setattr(ClientStrategy, "aggregate_train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(**keys)
    run = train(**keys, resume="auto")
    assert [row["round"] for row in run.rounds()] == [1, 2, 3, 4, 5]
    assert run.privacy() == {"releases": 6, "noise": 4.0, "clients": 10, "cohort": 5}
    assert run.rounds()[-1]["epsilon"] == LEFT.epsilon(6)  # round 4 twice


def test_a_run_ends_before_it_would_exceed_its_budget(train, caplog):
    limit = LEFT.epsilon(3) + 1e-9
    run = train(dp_noise=4.0, num_rounds=9, dp_epsilon=limit)
    assert [row["round"] for row in run.rounds()] == [1, 2, 3]
    assert run.rounds()[-1]["accuracy"] is not None
    summary = run.summary()
    assert (summary["status"], summary["rounds"]) == ("completed", 3)
    assert summary["reason"] == f"a further round would exceed dp-epsilon {limit:g}"
    assert summary["epsilon"] <= limit
    assert "allows 3 of 9 rounds" in caplog.text


def test_a_run_whose_budget_is_spent_is_refused_and_its_summary_says_so(train, tmp_path):
    with pytest.raises(UserError, match=r"round 1 would exceed dp-epsilon 0\.5"):
        train(dp_noise=4.0, dp_epsilon=0.5)
    (summary,) = (json.loads(file.read_text()) for file in tmp_path.rglob("summary.json"))
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert summary["reason"].startswith("round 1 would exceed dp-epsilon 0.5")


@pytest.mark.parametrize(
    ("releases", "first", "planned", "last"), [(0, 1, 2, 2), (1, 1, 2, 2), (7, 9, 8, 8)]
)
def test_the_last_round_is_the_planned_one_where_the_budget_suffices(
    releases, first, planned, last, tmp_path
):
    budget, run = Budget(40.0, 10, 5, 1e-5, 8.0), RunDirectory.create(tmp_path, "one", {})
    run.write_privacy(releases, budget.terms())
    assert last_round(budget, run, first, planned) == last
    assert last_round(None, run, first, planned) == planned


def test_a_resumed_run_without_budget_trains_no_further_round_and_keeps_its_files(train):
    limit = LEFT.epsilon(3) + 1e-9
    keys = {"dp_noise": 4.0, "num_rounds": 9, "dp_epsilon": limit, "checkpoint_every": 1}
    before = train(**keys).rounds()
    again = train(**keys, resume="auto")
    assert again.rounds() == before
    assert again.summary()["status"] == "completed"
    assert again.privacy()["releases"] == 3


def test_rounds_with_other_noise_are_not_counted_together(tmp_path):
    run = RunDirectory.create(tmp_path, "one", {})
    run.write_privacy(3, Budget(1.0, 10, 5, 1e-5).terms())
    with pytest.raises(UserError, match=r"count with noise 1\.0, this configuration has 4\.0"):
        last_round(LEFT, run, 1, 5)


def test_a_count_that_cannot_be_written_ends_the_run(train, monkeypatch):
    def full(self, count, terms):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_privacy", full)
    with pytest.raises(UserError, match=r"privacy\.json cannot be written \(No space left"):
        train(dp_noise=4.0)


def test_cohorts_of_a_run_with_noise_do_not_follow_from_the_seed():
    run = settings(**PRIVATE, num_clients=40, participation=0.2, num_rounds=1, shards=1)
    quiet, noisy = federate(run)[1], federate({**run, "dp-noise": 1.0})[1]
    assert quiet.cohort(1) == quiet.cohort(1)
    drawn = {tuple(noisy.cohort(1)) for _ in range(20)}
    assert len(drawn) > 10
    assert all(len(set(cohort)) == 8 and sorted(cohort) == list(cohort) for cohort in drawn)
