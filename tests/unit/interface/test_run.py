"""`fedapp.run` and `load_run`: the command's runs, sentences and files, from Python."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from in_process import DEFAULTS, ROOT
from safetensors.torch import load_file
from typer.testing import CliRunner

import fedapp
from fedapp import Round, RunFailed, load_run, run
from fedapp.cli import app as cli
from fedapp.config.installed_app import find_app
from fedapp.config.project import components, default_config
from fedapp.core.errors import UserError
from fedapp.engines.subprocesses import INTERRUPTED
from fedapp.interface import training
from fedapp.interface.notebook import logged
from fedapp.results import progress

KEYS = {"method": "fedexp", "num_rounds": 2, "num_clients": 10, "participation": 0.5}
QUICK = {**KEYS, "engine": "in-process"}


@pytest.fixture(scope="module")
def by_command(tmp_path_factory):
    """The directory of a run that the command line made."""
    folder = tmp_path_factory.mktemp("command")
    pairs = f"method='fedexp' num-rounds=2 num-clients=10 participation=0.5 output-dir='{folder}'"
    asked = ["run", "--engine", "in-process", "--app", str(ROOT), "-c", pairs]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    return next(folder.iterdir())


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory without any project."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


SLOWEST = ("slowest_client", "slowest_seconds")
TIMES = ("seconds", "wait_seconds", "test_seconds", *SLOWEST)


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def timeless(path: Path) -> list[dict]:
    return [{key: row[key] for key in row if key not in TIMES} for row in rows_of(path)]


def test_a_run_is_the_commands_to_the_bit(by_command, here, capsys):
    made = run(**QUICK)
    assert made.path.parent == here / "runs"
    assert (made.path / "model.safetensors").read_bytes() == (
        by_command / "model.safetensors"
    ).read_bytes()
    assert timeless(made.path) == timeless(by_command)
    assert made.completed
    assert made.summary["accuracy_final"] == made.rounds[-1].accuracy
    assert made.config["num_clients"] == 10
    shown = capsys.readouterr().out
    assert "round 1/2  accuracy" in shown
    assert f"run directory runs/{made.name}" in shown


def test_workers_give_the_same_bits_and_their_log(by_command, capsys):
    made = run(**KEYS, workers=1)
    assert (made.path / "model.safetensors").read_bytes() == (
        by_command / "model.safetensors"
    ).read_bytes()
    assert "round 2/2  accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"metod": "fedavg"}, "run-config key 'metod' does not exist; did you mean 'method'?"),
        ({"num_rounds": 0}, "run-config key 'num-rounds' is 0 but must be "),
        ({"lr": "fast"}, "run-config key 'lr' is 'fast' but must be "),
        ({"method": "fedagv"}, "method 'fedagv' does not exist; did you mean 'fedavg'"),
        ({"preset": "no-such"}, "-c 'no-such' is neither a preset"),
        ({"engine": "gpu"}, "engine is 'gpu' but must be one of workers, ray, in-process"),
        ({"workers": -1}, "workers is -1 but must be a whole number: 0"),
        ({"workers": 1.5}, "workers is 1.5 but must be a whole number: 0 (choose) or more"),
        ({"nodes": "2"}, "nodes is '2' but must be a whole number"),
        ({"gpus": float("nan")}, "gpus is nan but must be a number: -1 (choose) or more"),
        ({"resume": "auto"}, "resume is 'auto', so run-name must say which run to continue"),
        ({"dataset": "images", "data_dir": "gone"}, "data-dir"),
    ],
)
def test_a_mistake_is_the_commands_sentence_and_leaves_nothing(here, asked, sentence):
    with pytest.raises(UserError) as caught:
        run(**{**QUICK, **asked})
    assert sentence in str(caught.value)
    assert type(caught.value) is UserError
    assert not list(here.glob("runs/*"))


def test_a_second_thread_cannot_train_meanwhile_and_the_streams_are_restored(here):
    before = sys.stdout, sys.stderr
    with logged(), pytest.raises(UserError, match="in progress in another thread of this process"):
        run(**QUICK)
    assert (sys.stdout, sys.stderr) == before
    assert not list(here.glob("runs/*"))
    run(**QUICK)


def test_a_name_that_is_taken_is_no_failed_run(by_command):
    with pytest.raises(UserError, match="already exists and is not empty") as caught:
        run(**QUICK, output_dir=by_command.parent, run_name=by_command.name)
    assert type(caught.value) is UserError
    assert load_run(by_command).completed


@pytest.mark.parametrize("where", [{"engine": "in-process"}, {"workers": 1}])
def test_a_failed_run_says_why_and_keeps_what_it_left(where):
    with pytest.raises(RunFailed, match="round 1 has 0 usable updates") as caught:
        run(**KEYS, **where, lr=1e9)
    failed = caught.value.run
    assert failed.summary["status"] == "failed"
    assert not failed.completed
    assert failed.report.exists()


def test_an_interruption_ends_the_run_in_good_order(here, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(progress, "round_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(**QUICK, run_name="stopped")
    assert load_run("runs/stopped").summary["status"] == "interrupted"
    monkeypatch.setattr(training.launch, "run", lambda *_: INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        run(**KEYS)
    assert [path.name for path in (here / "runs").iterdir()] == ["stopped"]


def test_a_preset_and_a_run_come_first_and_keys_win(by_command, here):
    Path("mine.toml").write_text("seed = 3\nnum-rounds = 9\n")
    keys = training.read_keys(["mine.toml", "lr=0.5"], {"num_rounds": 1, "data_dir": here})
    assert keys == {"seed": 3, "num-rounds": 1, "lr": 0.5, "data-dir": str(here)}
    file = by_command / "config.toml"
    assert training.read_keys(file, {})["partition-seed"] == 0
    assert training.read_keys(file, {"seed": 1})["partition-seed"] == "auto"


def test_without_a_project_the_defaults_are_those_of_the_keys(monkeypatch):
    assert find_app() == ROOT  # the checkout of this code
    monkeypatch.setattr("fedapp.config.project._CHECKOUT", Path("site-packages"))
    app = find_app()
    assert default_config(app) == DEFAULTS
    assert components(app) == components(ROOT)
    assert (app / "clients" / "__init__.py").exists()


def test_a_project_here_gives_its_defaults():
    text = (ROOT / "pyproject.toml").read_text()
    Path("pyproject.toml").write_text(text.replace("num-rounds = 120", "num-rounds = 7"))
    assert default_config(find_app())["num-rounds"] == 7


def test_the_project_of_another_app_gives_none():
    text = (ROOT / "pyproject.toml").read_text()
    Path("pyproject.toml").write_text(text.replace("fedapp.server_app:app", "other.server:app"))
    assert find_app() == ROOT


def test_a_run_of_the_command_is_loaded(by_command):
    loaded = load_run(by_command)
    assert loaded == load_run(str(by_command))
    assert loaded.summary["method"] == "fedexp"
    assert loaded.report == by_command / "report.html"
    assert [each.round for each in loaded.rounds] == [1, 2]
    assert loaded.rounds[0].metrics.keys() == {"step_length", *SLOWEST}
    assert "final accuracy" in repr(loaded)
    assert "<td>completed" in loaded._repr_html_()
    assert loaded.rounds._repr_html_().count("<tr>") == 3
    with pytest.raises(UserError, match="is not a folder"):
        load_run("no-such-run")


def test_a_round_has_the_fields_that_every_line_has(by_command):
    names = {each.name for each in fields(Round)} - {"metrics"}
    rows = rows_of(by_command)
    assert set.intersection(*map(set, rows)) == names | {"step_length", *SLOWEST}
    with pytest.raises(UserError, match=r"round 1 of metrics.jsonl has no 'seconds'"):
        Round.of({"round": 1})


def test_rounds_become_a_data_frame(by_command, monkeypatch):
    rounds = load_run(by_command).rounds
    frame = rounds.to_pandas()
    assert list(frame["accuracy"]) == [each.accuracy for each in rounds]
    assert "step_length" in frame
    assert "metrics" not in frame
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="needs pandas, which is not installed: `pip install"):
        rounds.to_pandas()


def test_the_model_is_the_one_that_was_saved(by_command):
    model = load_run(by_command).model()
    assert not model.training
    stored = load_file(by_command / "model.safetensors")
    assert model.state_dict().keys() == stored.keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in model.state_dict().items())
    _, logits = model(torch.zeros(2, 1, 8, 8))
    assert logits.shape == (2, 10)


def test_clients_models_are_no_global_model(tmp_path):
    made = run(**{**QUICK, "method": "local"})
    with pytest.raises(UserError, match="the clients of method 'local' have models of their own"):
        made.model()


def test_curves_are_figures_that_a_notebook_shows(by_command):
    loaded = load_run(by_command)
    assert loaded.plot()._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"plot compares runs, not 5; load_run\(PATH\) gives a run"):
        loaded.plot(5)
    lines = loaded.plot(loaded).axes[0].lines
    assert len(lines) == 2


def test_importing_fedapp_is_instant_and_shows_what_there_is():
    code = (
        "import sys, fedapp, fedapp.cli.app; print(sorted({'numpy', 'torch', 'pydantic', 'flwr'} "
        "& sys.modules.keys()), set(fedapp.__all__) <= set(dir(fedapp)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] True\n"


def test_editors_are_told_of_the_same_names():
    stub: dict = {}
    text = (ROOT / "fedapp" / "__init__.pyi").read_text()
    exec(text, {}, stub)
    assert stub["__all__"] == sorted(fedapp.__all__)
    assert all(getattr(fedapp, name) is stub[name] for name in stub["__all__"] if name in stub)
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        SimpleNamespace(x=fedapp.rum)


def test_a_finished_run_is_fine_tuned_and_calibrated_as_by_command(here):
    keys = {"num_rounds": 3, "num_clients": 10, "partition": "shards", "shards": 2}
    made = run(method="fedavg", engine="in-process", **keys)
    tuned = made.personalise(finetune_epochs=1, export=here / "models")
    assert len(tuned["clients"]) == len(list((here / "models").iterdir())) == 10
    assert json.loads((made.path / "personal.json").read_text())["finetune-epochs"] == 1
    with pytest.raises(UserError, match="give a smaller finetune-lr"):
        made.personalise(finetune_epochs=1, finetune_lr=1e30, export=here / "diverged")
    assert not (here / "diverged").exists()  # the corrected command can make it
    found = made.calibrate(features=50, epochs=2, device="cpu")
    assert found["before"]["accuracy"] == made.summary["accuracy_final"]
    assert found == json.loads((made.path / "calibration.json").read_text())
    with pytest.raises(UserError, match="key 'num-rounds' cannot differ"):
        made.calibrate(num_rounds=2)
