"""A user's own file adds rows to the tables in every process; a mistake in it is one sentence."""

import os
import re
import subprocess
import sys

import pytest
import torch
from in_process import ROOT, settings

from clients.training.objective import BASE_LOSSES, Step
from fedapp.config import extensions
from fedapp.config.resolve import parse_config
from fedapp.core import extension_files
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.methods.table import METHODS
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.preflight import wait_for_nodes

OWN_LOSS = ROOT / "examples" / "own_loss.py"
ROW = "from fedapp.methods import METHODS, LossSpec, Method\n"


@pytest.fixture
def named(monkeypatch, tmp_path):
    """Name a file with some content in FEDAPP_EXTENSIONS; the tables are restored afterwards."""
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "")
    tables = {kind: dict(table) for kind, (table, _) in extensions._TABLES.items()}

    def name(content, file="mine.py"):
        path = tmp_path / file
        path.write_text(content)
        os.environ["FEDAPP_EXTENSIONS"] = str(path)
        return path

    yield name
    for kind, (table, _) in extensions._TABLES.items():
        table.clear()
        table.update(tables[kind])


def trained(folder, *options):
    """Run the command for one round in a process of its own and return the run directory."""
    keys = f"num-rounds=1 num-clients=10 output-dir='{folder}' run-name='one'"
    command = [sys.executable, "-m", "fedapp.cli", "run", *options, "-c", keys]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return RunDirectory.load(folder / "one")


def test_the_example_trains_on_workers_of_its_own_and_names_its_file(tmp_path):
    summary = trained(tmp_path, "--extension", str(OWN_LOSS), "-c", "method='focal'").summary()
    assert (summary["method"], summary["status"]) == ("focal", "completed")
    assert summary["versions"]["extension"] == extension_files.digests([OWN_LOSS])


@pytest.mark.parametrize(("number", "file"), enumerate(["focal.py", "far.py", "half.py"]))
def test_the_files_of_the_page_train_by_the_command_of_the_page(tmp_path, number, file):
    text = (ROOT / "docs" / "own_loss.md").read_text()
    path = tmp_path / file
    path.write_text(re.findall(r"```python\n(.*?)```", text, re.S)[number])
    keys = re.search(rf'fedapp run --extension {file} -c "(.*)"', text)[1]
    run = trained(tmp_path, "--engine", "in-process", "--extension", str(path), "-c", keys)
    assert run.summary()["versions"]["extension"] == extension_files.digests([path])
    assert run.rounds()[0].get("server_step") == (0.7 if file == "half.py" else None)


def test_the_focal_loss_of_the_example_has_the_value_of_its_formula(named):
    named(OWN_LOSS.read_text())
    files, mistake = extensions._with_files()
    assert ([path.name for path in files], mistake) == (["mine.py"], None)
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    p = torch.tensor([1 / (1 + torch.e**-2), 1 / (1 + torch.e)])
    expected = (-((1 - p) ** 2) * p.log()).mean()
    step = Step(labels, torch.zeros(2, 1), logits, torch.zeros(2, 1))
    torch.testing.assert_close(BASE_LOSSES["focal"](step), expected)
    assert parse_config(settings(method="focal")).method == "focal"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ny = 1 / 0", r"mine\.py cannot be imported: line 2: ZeroDivisionError: division"),
        ("def broken(:", r"mine\.py cannot be imported: line 1: SyntaxError: invalid syntax"),
        ("import no_such_package", r"cannot be imported: line 1: ModuleNotFoundError: No module"),
        (ROW + "METHODS['fedavg'] = Method('', '')", "the method 'fedavg' exists; choose another"),
        (ROW + "METHODS['x'] = 3", "the method 'x' is a int, but must be a Method"),
        (
            ROW + "from fedapp.core.keys import Key\n"
            "METHODS['x'] = Method('', '', keys={'feddyn-alpha': Key(float, 1.0, 'mine')})",
            "two methods declare the key 'feddyn-alpha' differently",
        ),
        (
            ROW + "from fedapp.core.keys import Key\n"
            "METHODS['x'] = Method('', '', keys={'num-rounds': Key(int, 1, 'mine')})",
            "the key 'num-rounds' exists; choose another name",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_the_tables_unchanged(named, content, message):
    before = dict(METHODS)
    named(content)
    files, mistake = extensions._with_files()
    assert files == []
    assert before == METHODS
    with pytest.raises(UserError, match=f"^FEDAPP_EXTENSIONS: .*{message}"):
        raise mistake


def test_a_mistake_ends_the_reading_of_every_configuration(monkeypatch):
    monkeypatch.setattr(extensions, "_mistake", UserError("FEDAPP_EXTENSIONS: mine.py is broken"))
    with pytest.raises(UserError, match=r"mine\.py is broken"):
        parse_config(settings(method="fedavg"))


@pytest.mark.parametrize("name", ["missing.py", "folder", "notes.txt"])
def test_a_path_that_is_no_python_file_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "")
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=f"^--extension: {tmp_path / name} is no Python file"):
        extension_files.add_files([tmp_path / name])
    assert os.environ["FEDAPP_EXTENSIONS"] == ""


def test_files_are_added_once_and_in_their_order(named, tmp_path):
    first = named("import sys\nsys.order = [1]", "first.py")
    second = tmp_path / "second.py"
    second.write_text("import sys\nsys.order.append(2)")
    extension_files.add_files([second, first])
    extension_files.add_files([second])
    assert extension_files.import_files() == [first, second]
    assert sys.__dict__.pop("order") == [1, 2]


def test_a_run_names_the_file_only_if_it_uses_a_row_of_it(named, monkeypatch):
    path = named(OWN_LOSS.read_text())
    monkeypatch.setattr(extensions, "_files", extensions._with_files()[0])
    assert parse_config(settings(method="fedavg")).extension() == "none"
    own = parse_config(settings(method="focal")).extension()
    assert own == extension_files.digests([path])
    assert own.startswith("mine.py ")
    path.write_text(path.read_text() + "# changed")
    assert parse_config(settings(method="focal")).extension() != own


def test_a_node_with_another_file_is_refused_by_name():
    grid = InProcessGrid(settings(method="fedavg"), 2)
    with pytest.raises(
        UserError, match=r"has another extension \(none\) than the server \(mine.py"
    ):
        wait_for_nodes(grid, 10, {"extension": "mine.py 0123"}, 5)
