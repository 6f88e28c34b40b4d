"""What a client sends and is sent, when some of those that were asked do not answer."""

import pytest
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.core.errors import UserError
from fedapp.results.run_directory import RunDirectory
from fedapp.results.traffic import traffic_row


def test_a_client_is_sent_its_share_whether_it_answers_or_not(tmp_path):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    row = {"accuracy": 0.5, "bytes_up": 9, "bytes_down": 9, "clients": 5}
    sent = {"client_bytes_down": 10_000, "client_bytes_up": 2_500}
    run.log_round({"round": 1, **row, **sent, "asked": 10})
    found = traffic_row(run)
    assert (found["client_down_kb"], found["client_up_kb"]) == (1.0, 0.5)
    run.log_round({"round": 2, **row, **sent})  # as runs before this count wrote it
    assert traffic_row(run)["client_down_kb"] == pytest.approx(20 / 15)


@pytest.mark.parametrize("row", [{}, {"round": 1}, {"round": 1, "clients": None}])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_line_without_traffic_is_an_error_that_names_the_run(tmp_path, row, options):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    run.log_round(row)
    done = CliRunner().invoke(app, ["traffic", str(run.path), *options])
    assert isinstance(done.exception, UserError)
    assert str(run.path) in str(done.exception)


def test_a_config_without_a_method_is_named(tmp_path):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    (run.path / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"config\.toml is not that of a run: it has no key 'meth"):
        traffic_row(run)
