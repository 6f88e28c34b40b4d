"""A simulation works in a folder that is removed after it, and nothing of the user's with it."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from fedapp.config.project import merge
from fedapp.core.errors import UserError
from fedapp.engines import launch
from fedapp.engines.launch import copy_app, environment_for
from fedapp.engines.resources import Resources

ROOT = Path(__file__).parents[3]


def test_folders_named_by_the_environment_are_those_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    monkeypatch.setenv("FEDAPP_STATE", "states")
    monkeypatch.setenv("FEDAPP_CACHE", "~/cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    found = environment_for(tmp_path / "home")
    assert found["FEDAPP_STATE"] == str(tmp_path / "states")
    assert found["FEDAPP_CACHE"] == str(tmp_path / "me" / "cache")
    assert found["XDG_CACHE_HOME"] == ""
    assert found["FLWR_HOME"] == str(tmp_path / "home")


@pytest.mark.parametrize("key", ["data-dir", "output-dir", "state-dir", "resume", "initial-model"])
def test_a_home_folder_of_nobody_is_said_before_anything_starts(key):
    with pytest.raises(UserError, match=f"^{key} is '~no-such-user/x' but there is no such home"):
        merge(ROOT, {key: "~no-such-user/x"})


def test_a_run_whose_process_is_killed_says_so(monkeypatch, capfd):
    monkeypatch.setattr(launch, "run_task", lambda *_, **__: -9)
    assert launch.run(ROOT, {"num-rounds": 1}, Resources()) == 1
    assert "was killed by signal 9 (SIGKILL), perhaps because" in capfd.readouterr().err


def test_a_variable_that_names_the_home_folder_of_nobody_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_STATE", "~no-such-user/x")
    with pytest.raises(UserError, match=r"^FEDAPP_STATE is '~no-such-user/x' but there is no such"):
        environment_for(tmp_path)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("mlruns", "{here}/mlruns"),
        ("sqlite:///mlflow.db", "sqlite:///{here}/mlflow.db"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
        ("http://tracker:5000", "http://tracker:5000"),
        ("databricks", "databricks"),
    ],
)
def test_an_address_of_mlflow_is_seen_from_where_the_user_is(tmp_path, monkeypatch, given, address):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    found = environment_for(tmp_path / "home")
    assert found["MLFLOW_TRACKING_URI"] == address.format(here=tmp_path)


def test_an_empty_output_dir_is_the_default_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ({}, {"output-dir": ""}, {"output-dir": "runs"}):
        assert merge(ROOT, given)["output-dir"] == str(tmp_path / "runs")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(("module", "name"), [(shutil, "copyfile"), (os, "makedirs")])
def test_a_full_temporary_folder_is_one_sentence(tmp_path, monkeypatch, code, module, name):
    def full(*arguments, **options):
        raise OSError(code, os.strerror(code), "file")

    monkeypatch.setattr(module, name, full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(UserError) as caught:
        copy_app(ROOT, tmp_path / "fedapp-x" / "app")
    assert str(caught.value) == (
        f"the temporary folder {tmp_path} has no space for a copy of the app "
        f"({os.strerror(code)}); make room in it, or let TMPDIR name another folder"
    )


def test_an_app_that_cannot_be_read_is_one_sentence(tmp_path):
    package = tmp_path / "project" / "own"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "gone.py").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError) as caught:
        copy_app(tmp_path / "project", tmp_path / "app")
    assert str(caught.value).startswith(f"the app in {tmp_path}/project cannot be copied to ")
    assert "No such file or directory" in str(caught.value)
