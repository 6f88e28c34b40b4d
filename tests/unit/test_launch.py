"""A simulation works in a folder that is removed after it, and nothing of the user's with it."""

from pathlib import Path

from fedapp.launch import environment_for, merge

ROOT = Path(__file__).parents[2]


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


def test_an_empty_output_dir_is_the_default_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in ({}, {"output-dir": ""}, {"output-dir": "runs"}):
        assert merge(ROOT, given)["output-dir"] == str(tmp_path / "runs")
