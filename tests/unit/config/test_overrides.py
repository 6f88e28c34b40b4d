"""A run's config.toml alone repeats the run; with later overrides "auto" chooses again."""

from pathlib import Path

import pytest
from in_process import ROOT

from fedapp.config.overrides import is_file, read_overrides, with_extension_keys
from fedapp.config.project import default_config
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.engines.in_process import run_in_process
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.server.opening import opened_run

DEFAULTS = default_config(ROOT)


def resolved(*texts, more=False):
    return parse_config({**DEFAULTS, **read_overrides(texts, more)})


@pytest.fixture
def record(tmp_path):
    """Return a function that opens a run of `-c` texts and returns its config.toml."""

    def opened(*texts):
        unresolved = {**DEFAULTS, **read_overrides(texts), "output-dir": str(tmp_path)}
        with opened_run(parse_config(unresolved), unresolved, "") as (run, _):
            return str(run.path / "config.toml")

    return opened


def test_alone_it_has_the_values_that_auto_chose(record):
    given = read_overrides([record("method='fedavg' seed=3 lr=0.7")])
    assert (given["partition-seed"], given["lr"], given["regulariser"]) == (3, 0.7, "none")
    assert "auto" not in (given[key] for key in ("local-epochs", "batch-size", "model"))


@pytest.mark.parametrize(
    "change", ["seed=4", "method='feddr+'", "method='fedntd' beta=0.5", "dataset='mnist'"]
)
def test_with_changes_auto_values_are_chosen_again(record, change):
    first = "method='fedavg' seed=3 num-rounds=7"
    same_folder = {"output-dir": ""}
    changed = resolved(record(first), change).flat() | same_folder
    assert changed == resolved(first, change).flat() | same_folder


@pytest.mark.parametrize("method", ["feddyn", "centralised"])
def test_values_that_a_method_fixes_are_not_the_users(record, method):
    config = record(f"method='{method}' num-rounds=7")
    assert read_overrides([config])["weights"] == "uniform"  # the run is repeated as it was
    after = resolved(config, "method='fedavg'")
    assert (after.weights, after.num_clients, after.partition) == ("size", 20, "shards")
    assert after.num_rounds == 7


def test_values_that_the_user_set_stay_with_later_overrides(record):
    first = "method='dr' partition-seed=9 lr=0.7 regulariser='ntd'"
    again = resolved(record(first), "method='fedavg' seed=1")
    assert (again.partition_seed, again.lr, again.regulariser) == (9, 0.7, "ntd")


def test_a_sweep_chooses_again_for_what_it_varies(record):
    config = record("method='fedavg'")
    assert read_overrides([config], more=True)["lr"] == "auto"
    assert read_overrides([config])["lr"] != "auto"


def test_a_string_that_ends_like_a_mark_is_not_a_mark(record):
    config = record("run-name='x  # auto'")
    assert read_overrides([config], more=True)["run-name"] == "x  # auto"


def test_a_real_run_marks_what_was_chosen(tmp_path):
    given = {"num-rounds": 1, "lr": 0.25, "output-dir": str(tmp_path), "run-name": "one"}
    assert run_in_process(ROOT, {**DEFAULTS, **given}, Resources()) == 0
    lines = (tmp_path / "one" / "config.toml").read_text().splitlines()
    assert "lr = 0.25" in lines
    assert "partition-seed = 0  # auto" in lines
    assert "num-rounds = 1" in lines
    assert "shards = 2  # default" in lines


def test_a_key_of_a_method_is_marked_unless_it_has_its_default(record):
    marks = RunDirectory.load(
        Path(record("method='fedntd' ntd-tau-squared=false")).parent
    ).origins()
    assert marks["kd-ntd-lambda"] == "default"
    assert marks["tau"] == "auto"
    assert not marks.keys() & {"method", "ntd-tau-squared"}


def test_text_that_is_neither_file_nor_pairs_is_refused_in_one_sentence():
    assert is_file("mine.toml")
    assert is_file("fedntd-cifar10-shards")
    assert not is_file("lr=0.1")
    with pytest.raises(UserError, match=r"'fedntd' is neither a preset .* nor a .toml file nor"):
        is_file("fedntd")


def test_a_toml_file_with_a_table_is_refused(tmp_path):
    (tmp_path / "mine.toml").write_text("[run]\nseed = 1\n")
    with pytest.raises(UserError, match=r"mine\.toml': 'run' is a TOML table, but all keys stand"):
        read_overrides([str(tmp_path / "mine.toml")])


@pytest.mark.parametrize(
    ("key", "near"),
    [("learning-rate", "lr"), ("NUM_ROUNDS", "num-rounds"), ("strategy", "method")],
)
def test_another_name_of_a_key_leads_to_it(key, near):
    with pytest.raises(UserError, match=f"'{key}' does not exist; did you mean '{near}'?"):
        parse_config({key: 1})


def test_a_name_in_other_letters_is_found():
    with pytest.raises(UserError, match="'CIFAR-10' does not exist; did you mean 'cifar10'"):
        parse_config({"dataset": "CIFAR-10"})


def test_extension_keys_are_keys_of_their_own_that_the_user_has_set(tmp_path):
    assert read_overrides(["extension-keys='lr=0.5 num-rounds=1' lr=0.1"]) == {
        "lr": 0.5, "num-rounds": 1,
    }  # fmt: skip
    values = {**DEFAULTS, "method": "fedavg", "num-rounds": 1, "output-dir": str(tmp_path)}
    values |= {"run-name": "one", "extension-keys": "lr=0.5"}  # as from `flwr run`
    assert run_in_process(ROOT, values, Resources()) == 0
    lines = (tmp_path / "one" / "config.toml").read_text().splitlines()
    assert "lr = 0.5" in lines  # unmarked: it is the user's


@pytest.mark.parametrize("text", ["feddr+-cifar100-shards", "secret.toml", "lr"])
def test_further_keys_are_pairs_and_name_no_file(text, tmp_path, monkeypatch):
    """The server sends them: it must not make a node read a file of its choice."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.toml").write_text("password = 'hunter2'")
    with pytest.raises(UserError, match=r"'extension-keys' is .* not key=value") as caught:
        with_extension_keys({"extension-keys": text})
    assert "hunter2" not in str(caught.value)
