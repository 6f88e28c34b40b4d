"""What a run will cost, told before it starts."""

import re
from pathlib import Path

import psutil
import pytest
from in_process import ROOT, settings
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.server import forecast as module
from fedapp.runtime.server.forecast import forecast


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.05)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedntd", "moon", "scaffold", "fedavg-ft", "feddor", "fml"]
)
def test_a_forecast_counts_images_and_measures_speed(method):
    config = parse_config(
        settings(method=method, num_clients=10, participation=0.5, local_epochs=3, num_rounds=4)
    )
    cost = forecast(config, workers=2)
    assert cost.images_per_round == round(1438 / 10 * 5 * 3)
    assert cost.images_per_second > 10
    least = cost.images_per_round / (2 * cost.images_per_second)
    assert cost.seconds_per_round >= least
    assert cost.seconds == pytest.approx(4 * cost.seconds_per_round)
    process = psutil.Process().memory_info().rss
    assert process / 2 < cost.memory < 3 * process  # workers share what they import
    assert (cost.state is not None) == (method in ("moon", "scaffold", "feddor", "fml"))
    assert cost.state is None or cost.state > 0
    assert cost.own_steps == (method in ("scaffold", "feddor", "fml"))


def test_clients_without_a_full_batch_have_no_forecast():
    config = parse_config(settings(method="fedproto", num_clients=1438, partition="iid"))
    with pytest.raises(UserError, match=r"no client has a full batch of 50 images, .*batch-s"):
        forecast(config, workers=1)


def test_check_prints_the_run_and_starts_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = "method='fedprox' num-clients=10 num-rounds=7"
    done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", "-c", keys])
    assert done.exit_code == 0, done.output
    for words in ("fedprox", "7 rounds", "188,810 parameters", "per second", "about"):
        assert words in done.stdout
    assert "not counted" not in done.stdout
    assert not list(Path(tmp_path).iterdir())


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("scaffold", r"models of \d+\.\d MB per round; not counted: control variates"),
        ("fedetf", r"models of \d+\.\d MB per round$"),
        ("ifca", "traffic +not counted: one of the clusters' models"),
        ("local", "traffic +none"),
    ],
)
def test_what_clients_send_besides_models_is_named_where_it_is_not_counted(method, words):
    args = ["run", "--app", str(ROOT), "--check", "-c", f"method='{method}' num-clients=10"]
    done = CliRunner().invoke(cli.app, args)
    lines = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert re.search(words, lines, re.M), lines


def test_check_says_where_a_method_has_other_steps_than_it_measures():
    for method in ("ditto", "fedprox"):
        keys = f"method='{method}' num-clients=10 num-rounds=7"
        done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", "-c", keys])
        assert ("have local steps of their own" in done.output) == (method == "ditto")


def test_check_warns_of_rounds_longer_than_their_time_limit(tmp_path):
    keys = f"method='fedavg' num-clients=10 output-dir='{tmp_path}'"
    texts = ["run", "--app", str(ROOT), "--check", "-c", keys]
    done = CliRunner().invoke(cli.app, [*texts, "-c", "local-epochs=100 round-timeout=0.001"])
    assert re.search(
        r"round will take about \d+ s, and round-timeout ends it after 0.001 s", done.output
    )
    assert "round-timeout" not in CliRunner().invoke(cli.app, texts).output


def test_check_says_that_the_size_of_the_states_is_not_known(monkeypatch):
    monkeypatch.setattr(ProcessContext, "state_bytes", lambda self: 0)
    keys = "method='scaffold' num-clients=10"
    done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", "-c", keys])
    assert re.search(r"client states .* of a size not known before", done.output)


def test_check_names_the_typed_keys_without_effect(tmp_path):
    preset = tmp_path / "preset.toml"
    preset.write_text("method = 'fedavg'\nfedsol-rho = 2.0\n")
    texts = ["-c", str(preset), "-c", "mu=0.5 alpha=0.2 shards=4 num-clients=10"]
    done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", *texts])
    assert done.exit_code == 0, done.output
    assert "mu, alpha have no effect with this method, data and partition" in done.output


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("shards=3 num-clients=7", "cannot be divided evenly"),
        ("resume='auto'", "run-name must say which run to continue"),
        ("resume='nowhere'", "nowhere"),
        ("run-name='taken'", "already exists and is not empty"),
        ("output-dir='/dev/null'", "output-dir /dev/null cannot be written: /dev/null is not a"),
        ("output-dir='/dev/null/runs'", "/dev/null is not a folder"),
    ],
)
def test_check_refuses_what_a_run_refuses(tmp_path, keys, sentence):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").touch()
    texts = ["-c", f"output-dir='{tmp_path}'", "-c", keys]
    done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", *texts])
    assert isinstance(done.exception, UserError)
    assert sentence in str(done.exception)


def test_check_refuses_workers_of_the_engine_without_workers():
    options = ["--engine", "in-process", "--workers", "4"]
    done = CliRunner().invoke(cli.app, ["run", "--app", str(ROOT), "--check", *options])
    assert "4 workers are asked for" in str(done.exception)


def test_data_on_the_clients_hosts_give_no_forecast(tmp_path):
    for kind in "ab":
        folder = tmp_path / "test" / kind
        folder.mkdir(parents=True)
        Image.new("L", (8, 8)).save(folder / "0.png")
    keys = {"dataset": "images", "partition": "own", "classes": "a, b", "num_clients": 2}
    config = parse_config(settings(method="fedavg", data_dir=str(tmp_path), **keys))
    with pytest.raises(UserError, match="the training images are on the clients' hosts"):
        forecast(config, workers=1)


def test_a_rate_at_which_training_diverges_has_a_forecast():
    config = parse_config(settings(method="fedavg", lr=1e9, num_clients=10))
    assert forecast(config, workers=1).images_per_second > 10
