"""What listings print: at 80 columns, by group, a page per method and key, and no markup."""

import json
import re

import pytest
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.cli.options import show
from fedapp.config.paper_settings import TUNED
from fedapp.config.resolve import parse_config, rate_note
from fedapp.config.run_config import RunConfig, group_of
from fedapp.config.run_keys import KEY_GROUPS
from fedapp.core.errors import UserError
from fedapp.methods.row import FAMILIES
from fedapp.methods.table import METHODS

runner = CliRunner()


def printed(*arguments: str, columns: str = "80") -> str:
    done = runner.invoke(cli.app, arguments, env={"COLUMNS": columns})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    "command", ["methods", "methods feddr+", "config", "config lr", "papers", "datasets", "presets"]
)
def test_listings_fit_80_columns_and_break_no_name(command):
    output = printed(*command.split())
    assert max(len(line.rstrip()) for line in output.splitlines() if "--cell" not in line) <= 80
    for name in ("centralised+babu", "fedorgp") if command == "methods" else ():
        assert re.search(rf"^ {re.escape(name)} ", output, re.MULTILINE)


def test_a_pipe_gets_a_row_per_line(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    output = runner.invoke(cli.app, ["methods"], env={"COLUMNS": None}).stdout
    (line,) = [line for line in output.splitlines() if line.startswith(" fedalign ")]
    assert METHODS["fedalign"].title in line


def test_methods_are_listed_once_in_their_family():
    for family in FAMILIES:
        output = printed("methods", "--family", family)
        names = [name for name in METHODS if re.search(rf"^ {re.escape(name)} ", output, re.M)]
        assert names == [name for name, row in METHODS.items() if row.family == family]
    with pytest.raises(UserError, match="--family is 'local' but must be one of global, person"):
        printed("methods", "--family", "local")
    with pytest.raises(UserError, match="--family is for the list of methods"):
        printed("methods", "fedavg", "--family", "global")


def test_a_methods_page_has_its_keys_settings_numbers_and_commands():
    page = json.loads(printed("methods", "fedntd", "--json"))
    assert {row["key"]: row["default"] for row in page["keys of its own"]} == {
        "ntd-tau-squared": True
    }
    rates = {(row["data set"], row["model"]): row for row in page["settings at 'auto'"]}
    assert rates["cifar10", "cnn"]["lr"] == 0.01
    tables = {(row["paper"], row["table"]): row for row in page["published numbers"]}
    assert tables["fedntd", "table1-sharding"]["numbers"] > 0
    assert page["commands"][0] == "fedapp run -c \"method='fedntd'\""
    assert page["commands"][1].startswith("fedapp reproduce ")
    with pytest.raises(UserError, match="method 'fedpro' does not exist; did you mean 'fedprox'"):
        printed("methods", "fedpro")


@pytest.mark.parametrize(
    "method", ["fedalign", "centralised", "fedetf-ft", "local", "feddor", "local-hetero"]
)
def test_every_kind_of_method_has_a_page(method):
    assert METHODS[method].title.split()[0] in printed("methods", method)


def test_config_lists_what_applies_with_its_origin():
    arguments = ["-c", "fedntd-cifar10-lda", "-c", "method='feddr+' num-rounds=7"]
    rows = {row["key"]: row for row in json.loads(printed("config", *arguments, "--json"))}
    assert list(rows) == list(RunConfig().flat())
    assert rows["num-rounds"]["from"] == "-c"
    assert rows["partition"]["from"] == "fedntd-cifar10-lda"
    assert rows["beta"]["from"].startswith("auto: Kim et al.")
    assert rows["lr"]["from"].startswith(f"auto: {TUNED}")
    assert rows["clip-norm"]["from"] == "default"
    assert rows["alpha"]["applies"]
    assert not rows["shards"]["applies"]
    assert not rows["fedproto-lambda"]["applies"]
    output = printed("config", *arguments)
    assert not re.search("^ shards ", output, re.M)
    assert re.search("^ shards ", printed("config", *arguments, "--all"), re.M)


def test_config_names_what_fine_tuning_follows_and_what_the_method_fixes():
    def origins(*arguments: str) -> dict[str, str]:
        return {row["key"]: row["from"] for row in json.loads(printed("config", *arguments))}

    tuned = origins("-c", "method='fedfn-ft' finetune-epochs=2", "--json")
    assert (tuned["finetune-lr"], tuned["finetune-epochs"]) == (
        "auto: fine-tuning as in fedfn",
        "-c",
    )
    one = origins("-c", "method='centralised' num-clients=5", "--json")
    assert (one["num-clients"], one["seed"]) == ("fixed by centralised", "default")


def test_every_key_is_in_a_group_and_has_a_page():
    for key in RunConfig().flat():
        assert group_of(key) in KEY_GROUPS
    page = {row[""]: row["lr"] for row in json.loads(printed("config", "lr", "--json"))}
    assert page["values"] == "a number > 0 <= 1e+30 or auto"
    assert page["example"] == 'fedapp run -c "lr=0.3"'
    page = {row[""]: row["bn"] for row in json.loads(printed("config", "bn", "--json"))}
    assert page["values"] == "batch, running, group"
    with pytest.raises(UserError, match="'lrr' does not exist; did you mean 'lr'"):
        printed("config", "lrr")


@pytest.mark.parametrize(
    ("keys", "guessed"),
    [
        ({"method": "feddr+", "dataset": "images"}, True),
        ({"method": "feddr+", "dataset": "images", "lr": 0.1}, False),
        ({"method": "fedavg", "dataset": "cifar10", "model": "cnn"}, False),
        ({"method": "spherefed", "dataset": "cifar10", "model": "cnn"}, True),
        ({"method": "feddr+", "dataset": "digits"}, False),
        ({"method": "feddor", "dataset": "images"}, False),
    ],
)
def test_a_guessed_learning_rate_is_named_with_what_to_do(keys, guessed):
    note = rate_note(keys, parse_config(keys))
    assert bool(note) == guessed
    if guessed:
        assert f"no published learning rate for {keys['method']} on {keys['dataset']}" in note
        assert 'fedapp sweep -c "YOUR KEYS" --vary "lr=' in note


def test_square_brackets_are_text(capsys, tmp_path):
    show("[red]title[/b]", [{"name": "[red]x[/red]", "path": "runs/[/b]"}], False)
    output = capsys.readouterr().out
    assert "[red]title[/b]" in output
    assert "[red]x[/red]" in output
    assert "runs/[/b]" in output
    assert "'.[hub]'" in printed("datasets", columns="400")


def test_arguments_and_log_levels_are_explained_and_commands_grouped():
    help_text = printed("papers", "--help")
    assert "A paper; default: all." in help_text
    assert "--quiet" in help_text
    groups = printed("--help")
    assert [title in groups for title in cli.PANELS] == [True] * len(cli.PANELS)


@pytest.mark.parametrize("name", ["", "."])
def test_a_plot_that_is_a_folder_is_one_sentence(name):
    with pytest.raises(UserError, match=r"'\.' cannot be written: it is a folder; name a PNG file"):
        printed("partition", "-c", "num-clients=10", "--plot", name)


def test_a_check_counts_the_one_client_of_centralised_training_and_refuses_what_a_run_refuses():
    found = CliRunner().invoke(
        cli.app, ["run", "--check", "-c", "method='centralised' num-rounds=1"]
    )
    assert found.exit_code == 0, found.output
    assert "on 1 processes" in found.output
    own = "dataset='images' partition='own' classes='cat dog' data-dir='/nowhere'"
    refused = CliRunner().invoke(cli.app, ["run", "--check", "-c", own])
    assert "every SuperNode has the images of its own data-dir" in str(refused.exception)
