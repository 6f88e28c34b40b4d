"""The `fedapp` command: tables, JSON, plots, and mistakes in one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedapp
from fedapp.cli import app as cli
from fedapp.config.overrides import read_overrides
from fedapp.config.project import app_folder, default_config, merge
from fedapp.config.resolve import load_run_config
from fedapp.core.errors import UserError
from fedapp.core.hardware import gpu_names
from fedapp.data.partition.table import PARTITIONS
from fedapp.engines.resources import Resources
from fedapp.results.run_directory import RunDirectory

ROOT = Path(__file__).parents[3]
runner = CliRunner()


def rows(*arguments: str) -> list[dict]:
    done = runner.invoke(cli.app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_methods_lists_the_table_with_all_its_columns():
    table = {row["method"]: row for row in rows("methods")}
    assert set(table) >= {"fedavg", "fedprox", "fedbabu", "dr", "feddr+", "fedfn", "fedntd"}
    plus = table["feddr+"]
    assert (plus["head"], plus["loss"], plus["regulariser"]) == ("etf", "dr", "fd")
    assert (plus["sends"], plus["defaults"]) == ("body", "beta=0.9")
    assert plus["source"].startswith("Kim et al.")


def test_every_command_has_help_with_an_example():
    commands = [command.callback.__name__ for command in cli.app.registered_commands]
    for name in commands:
        done = runner.invoke(cli.app, [name, "--help"])
        assert done.exit_code == 0
        assert "Example: fedapp" in " ".join(done.output.split()), name


def test_config_shows_what_auto_becomes():
    table = {row["key"]: row for row in rows("config", "-c", "method='fedntd' dataset='cifar10'")}
    assert table["model"]["value"] == "vgg11"
    assert table["regulariser"]["value"] == "ntd"
    assert all(row["meaning"] for row in table.values())


def test_partition_prints_and_plots_the_label_distribution(tmp_path):
    plot, images = tmp_path / "new" / "clients.png", tmp_path / "images.png"
    files = ("--plot", str(plot), "--images", str(images))
    table = rows("partition", "-c", "num-clients=10", *files)
    assert len(table) == 10
    assert sum(row["train"] for row in table) == 1438
    for row in table:
        assert list(row["classes"]) == list(map(str, range(10)))
        assert sum(count > 0 for count in row["classes"].values()) <= 2
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (plot, images))


def test_partition_lists_the_kinds():
    kinds = {row["partition"]: row["meaning"] for row in rows("partition", "--list")}
    assert kinds.keys() == PARTITIONS.keys()
    assert kinds["shards"] == "`shards` one-class shards per client"


@pytest.mark.parametrize("option", ["--save", "--plot"])
@pytest.mark.parametrize("file", ["", "folder"])
def test_a_folder_in_place_of_a_file_is_one_sentence(tmp_path, option, file):
    (tmp_path / "folder").mkdir()
    named = str(tmp_path / file) if file else ""
    done = runner.invoke(cli.app, ["partition", "-c", "num-clients=10", option, named])
    assert isinstance(done.exception, UserError)
    assert "cannot be written: it is a folder; name a " in str(done.exception)


def test_a_plot_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    plot = tmp_path / "file" / "clients.png"
    done = runner.invoke(cli.app, ["partition", "-c", "num-clients=10", "--plot", str(plot)])
    assert isinstance(done.exception, UserError)
    assert str(done.exception) == f"{plot} cannot be written: {plot.parent} is not a folder"


def test_datasets_and_doctor_print_tables_too():
    assert {"digits", "cifar10", "images"} <= {row["dataset"] for row in rows("datasets")}
    assert {row["check"] for row in rows("doctor")} >= {"Python", "flwr", "torch", "disk"}
    plain = runner.invoke(cli.app, ["datasets"])
    assert "digits" in plain.output


def test_a_mistake_is_one_sentence_on_stderr_and_exit_code_2():
    command = [sys.executable, "-m", "fedapp", "run", "-c", "methd='fedavg'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == (
        "fedapp: run-config key 'methd' does not exist; did you mean 'method'?\n"
    )


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["no-such.toml"], "-c no-such.toml: the file cannot be read: No such file"),
        (["num-rounds=="], "is not TOML"),
        (["seed=1 lr 0.1"], "'lr 0.1' is not a key=value pair"),
        (["seed=1 seed=2"], "Cannot overwrite a value"),
        (
            ["seed=1 method=feddr+"],
            "needs quotes, inside those of the shell: -c \"method='feddr\\+'",
        ),
        (["lr=.1"], "write lr=0.1$"),
        (["seed=007"], "write seed=7$"),
        (["download=True"], "write download=true$"),
        (["data-dir='a"], "Expected"),
        (["run-name=2024-05-01"], "a name needs quotes: run-name='2024-05-01'"),
        (["run-name=10:30:00"], "is a date or a time"),
    ],
)
def test_overrides_that_cannot_be_read(texts, words):
    with pytest.raises(UserError, match=words):
        read_overrides(texts)


@pytest.mark.parametrize("option", ["--nodes", "--workers"])
def test_there_are_no_negative_numbers_of_nodes_or_workers(monkeypatch, option):
    monkeypatch.setattr("fedapp.cli.run.simulate", lambda *_, **__: 0)
    done = runner.invoke(cli.app, ["run", option, "-1"])
    assert done.exit_code == 2
    assert option in done.output
    assert runner.invoke(cli.app, ["run", option, "0"]).exit_code == 0


def test_pairs_are_read_as_by_flower():
    from flwr.common.config import parse_config_args

    text = "lr=0.1 method='feddr+' name=\"a b\" pool-data=false seed=3"
    assert read_overrides([text]) == parse_config_args([text])
    assert read_overrides(["lr = 0.1  seed =3"]) == {"lr": 0.1, "seed": 3}


def test_starting_a_run_imports_nothing_heavy():
    code = """
import sys
from pathlib import Path
import fedapp.cli.app
from fedapp.config.overrides import read_overrides
from fedapp.config.project import merge
merge(Path("."), read_overrides(["seed=1", "fedntd-cifar10-shards"]))
print({"numpy", "torch", "flwr", "ray", "pydantic", "typer"} & sys.modules.keys())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "{'typer'}\n"


def test_later_overrides_win_and_paths_become_absolute(tmp_path):
    preset = tmp_path / "p.toml"
    preset.write_text('method = "fedavg"\nseed = 3\noutput-dir = "here"\n')
    values = load_run_config(ROOT, read_overrides([str(preset), "seed=5"]))
    assert (values["method"], values["seed"]) == ("fedavg", 5)
    assert values["output-dir"] == str(ROOT / "here")
    with pytest.raises(UserError, match=r"has no \[tool.flwr.app.config\]"):
        default_config(tmp_path)


def test_in_a_folder_without_an_app_commands_use_the_checkout(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert app_folder(Path(".")) == ROOT
    assert app_folder(tmp_path) == tmp_path  # a named folder stays
    done = CliRunner().invoke(cli.app, ["config", "seed", "--json"])
    assert done.exit_code == 0, done.output
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert app_folder(Path(".")) == ROOT  # also beside the files of another project
    monkeypatch.setattr("fedapp.config.project._CHECKOUT", tmp_path / "site-packages")
    (tmp_path / "pyproject.toml").unlink()
    assert app_folder(Path(".")) is None


def test_an_installation_without_a_checkout_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedapp.config.project._CHECKOUT", tmp_path / "site-packages")
    shown = CliRunner().invoke(cli.app, ["config", "lr", "--json"])
    assert shown.exit_code == 0, shown.output
    keys = "method='fedavg' num-rounds=1 participation=0.1 run-name='one'"
    done = CliRunner().invoke(cli.app, ["run", "--engine", "in-process", "-c", keys])
    assert done.exit_code == 0, done.output
    assert RunDirectory.load(tmp_path / "runs" / "one").summary()["status"] == "completed"


def test_paths_become_absolute_but_not_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "first.safetensors").touch()
    values = merge(ROOT, {"state-dir": "states", "initial-model": "first.safetensors"})
    assert values["state-dir"] == str(tmp_path / "states")
    assert values["initial-model"] == str(tmp_path / "first.safetensors")
    named = {"initial-model": "imagenet", "resume": "auto"}
    assert named.items() <= merge(ROOT, named).items()
    in_data = {"initial-model": "in-the-data-folder.pth"}
    assert in_data.items() <= merge(ROOT, in_data).items()


@pytest.mark.parametrize(
    ("visible", "names"),
    [("", []), ("-1", []), ("0, 2", ["0", "2"]), ("1,-1,0", ["1"]), ("NoDevFiles", [])],
)
def test_gpus_are_those_that_cuda_would_show(monkeypatch, visible, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_names() == names


def test_resources_are_chosen_from_the_machine(monkeypatch):
    monkeypatch.setattr("fedapp.engines.resources.cores", lambda: 8)
    monkeypatch.setattr("fedapp.engines.resources.gpu_names", lambda: [])
    assert Resources().resolve(100) == Resources(32, 8, 0.0)
    assert Resources().resolve(3).workers == 3
    assert Resources(0, 2).resolve(100, 0.1).nodes == 32  # 5 of 100 clients per worker
    assert Resources(0, 2).resolve(20, 0.1).nodes == 20
    assert Resources(0, 2).resolve(1000, 0.05).nodes == 8  # 25 per worker balance themselves
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "client-resources-num-cpus=2" in Resources(8, 4, 0.0).options()
    assert "init-args-num-cpus=8" in Resources(8, 4, 0.0).options()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # a cluster refuses to be told its size
    assert "init-args-num-cpus" not in Resources(8, 4, 0.0).options()
    monkeypatch.setattr("fedapp.engines.resources.gpu_names", lambda: ["0", "1"])
    assert Resources().resolve(100) == Resources(32, 8, 0.25)


def test_compare_and_report_read_run_directories(tmp_path):
    paths = []
    for name, accuracy in (("a", 0.5), ("b", 0.7)):
        run = RunDirectory.create(tmp_path, name, {"method": name, "dataset": "digits"})
        for r in (1, 2):
            run.log_round(
                {"round": r, "seconds": 1.0, "clients": 2, "accuracy": accuracy, "loss": 1.0}
            )
        run.write_summary({"method": name, "seed": 0, "rounds": 2, "accuracy_final": accuracy})
        paths.append(str(run.path))
    plot, table = tmp_path / "new" / "curves.png", tmp_path / "new" / "table.tex"
    files = ["--plot", str(plot), "--latex", str(table)]
    done = runner.invoke(cli.app, ["compare", *paths, *files, "--json"])
    assert done.exit_code == 0, done.output
    assert "0.7" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert table.read_text().count("\\\\\n") == 3  # heads and two groups
    named_twice = rows("compare", *paths, paths[0])
    assert named_twice == json.loads(done.stdout)
    assert runner.invoke(cli.app, ["report", paths[0]]).exit_code == 0
    assert (Path(paths[0]) / "report.html").read_text().startswith("<!doctype html>")


def test_an_analysis_without_a_measure_is_refused(tmp_path):
    (tmp_path / "config.toml").touch()
    done = runner.invoke(cli.app, ["analyse", str(tmp_path), "-m", " "])
    assert "no measure is named; choose from " in str(done.exception)


def test_watch_refuses_a_port_that_does_not_exist(tmp_path):
    done = runner.invoke(cli.app, ["watch", str(tmp_path), "--port", "70000"])
    assert done.exit_code == 2
    assert "70000 is not in the range 0<=x<=65535" in done.output


def test_the_version_is_that_of_the_package():
    assert runner.invoke(cli.app, ["--version"]).output == f"{fedapp.__version__}\n"


def test_a_plan_counts_hours_without_the_data_and_says_how_to_get_them(tmp_path):
    command = ["reproduce", "feddr+", "table3-sharding", "--data-dir", str(tmp_path), "--plan"]
    command += ["--cell", "feddr+ cifar100 s=10", "--seeds", "0", "--images-per-second", "600"]
    done = runner.invoke(cli.app, command)
    assert "1 of 1 cells can run: 1 runs, 4.8 million images, 2.2 hours" in done.output
    assert f"missing here: dataset 'cifar100' is not in {tmp_path}/cifar-100" in done.output
    (row,) = json.loads(runner.invoke(cli.app, [*command, "--json"]).stdout)
    assert (row["runs"], row["cannot run because"]) == (1, None)
    assert row["missing data"].startswith("dataset 'cifar100' is not in")
    assert "fedapp reproduce --download" in done.output
    del command[command.index("--plan")]
    assert "cifar100' is not in" in str(runner.invoke(cli.app, command).exception)


def test_a_wrong_key_of_a_published_table_is_found_without_its_data(tmp_path):
    command = ["reproduce", "feddr+", "table3-sharding", "--data-dir", str(tmp_path), "--plan"]
    done = runner.invoke(cli.app, [*command, "--cell", "feddr+ cifar100 s=10", "-c", "metod='dr'"])
    assert isinstance(done.exception, UserError)
    assert "'metod' does not exist; did you mean 'method'" in str(done.exception)
