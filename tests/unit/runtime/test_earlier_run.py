"""A finished run says which file of the user's it needs."""

import os
from pathlib import Path

import pytest

from fedapp.analysis.saved_runs import SavedRun
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.extension_files import VARIABLE
from fedapp.interface.runs import load_run
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.earlier_run import check_extension
from fedapp.trained_models.personalise import personalise

FILE = "/data/my losses/mine.py"
READERS = {
    "analyse": lambda path: SavedRun(RunDirectory.load(path)),
    "personalise": lambda path: personalise(path, {"finetune-epochs": 1}),
    "model": lambda path: load_run(path).model(),
}


def run_with(folder: Path, command: str) -> Path:
    run = RunDirectory.create(folder, "one", {"method": "mine", "dataset": "digits"})
    versions = {"extension": "mine.py 0123456789abcdef"}
    run.write_summary({"status": "completed", "versions": versions, "command": command})
    return run.path


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_run_with_an_own_file_names_it(tmp_path, monkeypatch, read):
    monkeypatch.delenv(VARIABLE, raising=False)
    path = run_with(tmp_path, f"{VARIABLE}='{FILE}' fedapp run -c config.toml")
    with pytest.raises(UserError, match=f"files of your own: name them by --extension '{FILE}'$"):
        read(path)


def test_two_files_are_two_options(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    command = f"{VARIABLE}=/a/one.py{os.pathsep}/b/two.py fedapp run -c config.toml"
    with pytest.raises(UserError, match=r"--extension /a/one\.py --extension /b/two\.py$"):
        READERS["analyse"](run_with(tmp_path, command))


def test_a_changed_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "/a/mine.py")
    run = RunDirectory.load(run_with(tmp_path, ""))
    with pytest.raises(UserError, match=r"extension mine\.py 0123456789abcdef instead of none; "):
        check_extension(run, parse_config({}))


def test_without_a_recorded_command_the_files_name_is_given(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match=r"name them by --extension mine\.py$"):
        READERS["analyse"](run_with(tmp_path, ""))
