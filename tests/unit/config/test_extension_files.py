"""A user's own file adds rows to the tables in every process; a mistake in it is one sentence."""

import os
import re
import subprocess
import sys

import pytest
import torch
from in_process import ROOT, assert_same, settings
from safetensors.numpy import load_file

from clients.training.objective import BASE_LOSSES, Step
from fedapp.cli.listing import method_row
from fedapp.config import extensions, run_config
from fedapp.config.extensions import foreign_keys
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core import extension_files
from fedapp.core.errors import UserError
from fedapp.core.extension_files import ExtensionFile
from fedapp.engines.in_process import InProcessGrid, run_in_process
from fedapp.engines.resources import Resources
from fedapp.experiments.sweep import execute, plan
from fedapp.methods.table import METHODS
from fedapp.results.run_directory import RunDirectory
from fedapp.server_app import run as train

OWN_LOSS = ROOT / "examples" / "own_loss.py"
PAGE = (ROOT / "docs" / "own_loss.md").read_text()
PAGE_FILES = ["focal.py", "adjusted.py", "far.py", "half.py", "smooth.py", "wide.py", "noise.py"]
ROW = """from fedapp.core.keys import Key
from fedapp.methods import METHODS, LossSpec, Method, ServerSpec
"""
OWN = """from clients.training.objective import BASE_LOSSES
BASE_LOSSES["own"] = lambda step, a: a * step.logits.mean()
"""


def trained(folder, *options):
    """Run the command for one round in a process of its own and return the run directory."""
    keys = f"num-rounds=1 num-clients=10 output-dir='{folder}' run-name='one'"
    command = [sys.executable, "-m", "fedapp", "run", *options, "-c", keys]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return RunDirectory.load(folder / "one")


def test_the_example_trains_on_workers_of_its_own_and_names_its_file(tmp_path):
    relative = os.path.relpath(OWN_LOSS, ROOT)  # workers start in other folders
    summary = trained(tmp_path, "--extension", relative, "-c", "method='focal'").summary()
    assert (summary["method"], summary["status"]) == ("focal", "completed")
    own = ExtensionFile(OWN_LOSS, OWN_LOSS.read_bytes())
    assert summary["versions"]["extension"] == str(own)
    assert summary["command"].startswith(f"FEDAPP_EXTENSIONS={OWN_LOSS} fedapp run -c ")


@pytest.mark.parametrize(("number", "file"), enumerate(PAGE_FILES))
def test_the_files_of_the_page_train_by_the_command_of_the_page(tmp_path, number, file):
    path = tmp_path / file
    path.write_text(re.findall(r"```python\n(.*?)```", PAGE, re.S)[number])
    keys = re.search(rf'fedapp run --extension {file} -c "(.*)"', PAGE)[1]
    run = trained(tmp_path, "--engine", "in-process", "--extension", str(path), "-c", keys)
    assert run.summary()["versions"]["extension"].startswith(f"{file} ")
    has_keys = file == "half.py"
    assert run.rounds()[0].get("server_step") == (0.7 if has_keys else None)
    assert "fedapp run -c" in run.summary()["command"]


def test_the_focal_loss_of_the_example_has_the_value_of_its_formula(named):
    named(OWN_LOSS.read_text())
    files, mistake = extensions._add_files()
    assert {row: file.path.name for row, file in files.items()} == {
        ("loss", "focal"): "mine.py", ("method", "focal"): "mine.py",
    }  # fmt: skip
    assert mistake is None
    logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    p = torch.tensor([1 / (1 + torch.e**-2), 1 / (1 + torch.e)])
    expected = (-((1 - p) ** 2) * p.log()).mean()
    step = Step(labels, torch.zeros(2, 1), logits, torch.zeros(2, 1))
    torch.testing.assert_close(BASE_LOSSES["focal"](step), expected)
    assert parse_config(settings(method="focal")).method == "focal"


def test_the_state_of_the_page_lasts_through_a_resume(named, tmp_path):
    named(re.findall(r"```python\n(.*?)```", PAGE, re.S)[PAGE_FILES.index("smooth.py")])
    assert extensions._add_files()[1] is None

    def model(name, *rounds):
        for last in rounds:
            run = settings(
                method="smooth", num_rounds=last, output_dir=str(tmp_path), run_name=name,
                resume="auto", keep_state=True, checkpoint_every=1, participation=1.0,
                lr_schedule="constant",
            )  # fmt: skip
            train(InProcessGrid(run), run, "", 0.0)
        return load_file(tmp_path / name / "model.safetensors")

    assert_same(model("resumed", 2, 3), model("whole", 3))


def row(arguments):
    return f"{ROW}METHODS['x'] = Method('', '', {arguments})"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\ny = 1 / 0", r"mine\.py cannot be imported: line 2: ZeroDivisionError: division"),
        ("def broken(:", r"mine\.py cannot be imported: line 1: SyntaxError: invalid syntax"),
        ("import no_such_package", r"cannot be imported: line 1: ModuleNotFoundError: No module"),
        ("x = '\0'", r"mine\.py cannot be imported: .*null bytes"),
        ("import sys\nsys.exit(3)", r"mine\.py cannot be imported: line 2: SystemExit: 3"),
        (ROW + "METHODS['fedavg'] = Method('', '')", "the method 'fedavg' exists; choose another"),
        (ROW + "METHODS['x'] = 3", "the method 'x' is of type int, but must be a Method"),
        (row("loss=LossSpec('focall')"), "method 'x': loss 'focall' does not exist; did you mean"),
        (row("loss=LossSpec('ce', 'nope')"), "method 'x': regulariser 'nope' does not exist"),
        (row("settings_of='fedavgg'"), "'fedavgg' does not exist; did you mean 'fedavg'"),
        (row("server=ServerSpec(options={'a': 'no-key'})"), "method 'x': key 'no-key' does not"),
        (row("defaults={'bta': 1.0}"), "method 'x': key 'bta' does not exist; did you mean 'beta'"),
        (row("defaults={'num-rounds': 3}"), "'num-rounds', which is never 'auto', .* in fixed"),
        (row("fixed={'num_round': 3}"), "method 'x': key 'num-round' does not exist; did you mean"),
        (row("keys={'half-step': 0.5}"), r"key 'half-step' is 0.5, but must be a Key\(type"),
        (row("keys={'half_step': Key(float, 1.0, '')}"), "must be words with hyphens"),
        (row("keys={'extension': Key(float, 1.0, '')}"), "must be words with hyphens"),
        (row("keys={'num-rounds': Key(int, 1, '')}"), "the key 'num-rounds' exists; choose"),
        (row("keys={'model-dump': Key(int, 1, '')}"), "the key 'model-dump' exists; choose"),
        (OWN + row("loss=LossSpec('own')"), r"what LossSpec\('own', options=\.\.\.\) names$"),
        (OWN + row("loss=LossSpec('own', options={'b': 'lr'})"), "'own' must take one argument"),
        (row("loss=None"), "method 'x': a part of its row has another type than in"),
        (row("defaults=[1]"), "method 'x': a part of its row has another type than in"),
        (row("keys={'feddyn-alpha': Key(float, 1.0, '')}"), "two methods declare the key 'feddyn-"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_the_tables_unchanged(named, content, message):
    before = dict(METHODS)
    named(content)
    files, mistake = extensions._add_files()
    assert files == {}
    assert before == METHODS
    with pytest.raises(UserError, match=rf"^--extension \(FEDAPP_EXTENSIONS\): .*{message}"):
        raise mistake


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("step.logit.mean()", r"mine\.py line 5: AttributeError: 'Step' object has no .*'logit'"),
        ("step.logits.exp()", r"the loss 'bad' has the shape \[\d+, 10\] but must be one number"),
    ],
)
def test_a_mistake_in_an_own_loss_is_one_line(named, tmp_path, loss, message):
    named(
        f"{ROW}from clients.training.objective import BASE_LOSSES\n"
        f"def bad(step):\n    return {loss}\n"
        "BASE_LOSSES['bad'] = bad\nMETHODS['bad'] = Method('', '', loss=LossSpec('bad'))\n"
    )
    assert extensions._add_files()[1] is None
    run = settings(method="bad", output_dir=str(tmp_path), run_name="bad")
    with pytest.raises(UserError, match=message) as mistake:
        train(InProcessGrid(run), run, "", 0.0)
    assert "\n" not in str(mistake.value)


def test_a_rows_defaults_may_be_words_and_have_hyphens(named):
    named(row("defaults={'weight-decay': 0.1, 'lr-schedule': 'cosine'}, fixed={'num-clients': 5}"))
    assert extensions._add_files()[1] is None
    config = parse_config({"method": "x", "weight-decay": "auto"})
    assert (config.weight_decay, config.lr_schedule, config.num_clients) == (0.1, "cosine", 5)
    assert method_row("x", METHODS["x"])["defaults"] == "weight-decay=0.1 lr-schedule=cosine"


def test_a_file_cannot_replace_a_row_of_the_file_before_it(named, tmp_path):
    named(row(""), "second.py")
    first = named(row(""), "first.py")
    os.environ["FEDAPP_EXTENSIONS"] = f"{first}{os.pathsep}{tmp_path / 'second.py'}"
    _, mistake = extensions._add_files()
    assert str(mistake) == f"{extension_files.SOURCE}: the method 'x' exists; choose another name"
    assert "x" not in METHODS


def test_a_run_of_another_method_is_read_without_the_file(named, tmp_path):
    named(row("loss=LossSpec(weight='half-step'), keys={'half-step': Key(float, 1.0, '')}"))
    extensions._add_files()
    assert "half-step" in foreign_keys("fedavg") - foreign_keys("x")


def test_a_run_records_no_keys_of_other_methods_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setattr(run_config, "foreign_keys", lambda method: {"feddyn-alpha"})
    values = settings(method="fedavg", num_rounds=1, output_dir=str(tmp_path), run_name="one")
    train(InProcessGrid(values), values, "", 0.0)
    recorded = RunDirectory.load(tmp_path / "one").config()
    assert parse_config(values).flat().keys() - recorded.keys() == {"feddyn-alpha"}


def test_a_mistake_ends_the_reading_of_every_configuration(monkeypatch):
    monkeypatch.setattr(extensions, "_mistake", UserError("FEDAPP_EXTENSIONS: mine.py is broken"))
    with pytest.raises(UserError, match=r"mine\.py is broken"):
        parse_config(settings(method="fedavg"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", "there is no file {}/missing.py"),
        ("folder", "there is no file {}/folder"),
        ("notes.txt", "{}/notes.txt is no Python file"),
        ("a:b.py", "{}/a:b.py has a ':' in its path"),
    ],
)
def test_a_path_that_cannot_be_an_extension_is_refused(tmp_path, monkeypatch, name, message):
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "")
    (tmp_path / "folder").mkdir()
    for file in ("notes.txt", "a:b.py"):
        (tmp_path / file).write_text("")
    with pytest.raises(UserError, match=f"^--extension: {message.format(tmp_path)}"):
        extension_files.add_files([tmp_path / name])
    assert os.environ["FEDAPP_EXTENSIONS"] == ""


def test_the_home_of_an_unknown_user_is_named(monkeypatch):
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "~nobody-of-this-name/x.py")
    with pytest.raises(
        UserError, match=r"FEDAPP_EXTENSIONS is .* but there is no such home folder"
    ):
        extension_files.read_files()


def test_files_are_added_once_in_their_order_and_by_absolute_paths(named, tmp_path, monkeypatch):
    first = named("", "first.py")
    second = tmp_path / "second.py"
    second.write_text("")
    monkeypatch.chdir(tmp_path)
    os.environ["FEDAPP_EXTENSIONS"] = "first.py"
    assert [file.path for file in extension_files.read_files()] == [first]
    assert os.environ["FEDAPP_EXTENSIONS"] == str(first)
    extension_files.add_files(["second.py", first])
    extension_files.add_files([second])
    assert [file.path for file in extension_files.read_files()] == [first, second]


def test_a_file_can_import_another_one_of_its_folder(named, tmp_path):
    (tmp_path / "beside_the_extension.py").write_text("NAME = 'twin'")
    named("from beside_the_extension import NAME\n" + OWN_LOSS.read_text().replace(
        'METHODS["focal"]', "METHODS[NAME]"))  # fmt: skip
    files, mistake = extensions._add_files()
    assert mistake is None
    assert ("method", "twin") in files


def test_a_run_names_the_files_that_it_uses_as_they_were_imported(named, monkeypatch, tmp_path):
    path = named(OWN_LOSS.read_text())
    (tmp_path / "other.py").write_text(ROW + "METHODS['other'] = Method('', '')")
    extension_files.add_files([tmp_path / "other.py"])
    monkeypatch.setattr(extensions, "_files", extensions._add_files()[0])
    assert parse_config(settings(method="fedavg")).extension() == "none"
    config = parse_config(settings(method="focal"))
    own, identity = config.extension(), config.fingerprint()
    assert own == str(ExtensionFile(path, path.read_bytes()))
    assert own.startswith("mine.py ")
    path.unlink()  # this process goes on with the code that it has
    assert (config.extension(), config.fingerprint()) == (own, identity)
    monkeypatch.setattr(extensions, "_files", {
        row: ExtensionFile(file.path, b"another loss") for row, file in extensions._files.items()
    })  # fmt: skip
    assert config.fingerprint() != identity


def test_a_node_with_another_file_is_refused_by_name(monkeypatch, tmp_path):
    versions = iter(["mine.py 0123"] + ["mine.py 4567"] * 10)
    monkeypatch.setattr(RunConfig, "extension", lambda self: next(versions))
    run = settings(method="fedavg", output_dir=str(tmp_path), run_name="one")
    with pytest.raises(
        UserError, match=r"another extension \(mine.py 4567\) than the server \(mine"
    ):
        train(InProcessGrid(run, 2), run, "", 0.0)


def test_a_sweep_does_not_take_the_results_of_an_earlier_version_of_the_file(tmp_path, monkeypatch):
    def sweep():
        return plan(ROOT, {**settings(), "num-rounds": 1}, {"method": ("fedavg",)}, [0], tmp_path)

    execute(ROOT, sweep(), Resources(), run_in_process)
    assert sweep()[0].outcome == "completed"
    monkeypatch.setattr(RunConfig, "extension", lambda self: "mine.py 0123")
    with pytest.raises(UserError, match="with the extension none instead of mine"):
        sweep()
