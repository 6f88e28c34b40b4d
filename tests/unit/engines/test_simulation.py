"""The process of one simulation: a configuration that is wrong already where it is first used."""

import os
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict
from in_process import settings

from fedapp.core.errors import UserError
from fedapp.engines import simulation
from fedapp.engines.apps import ConfiguredClientApp
from fedapp.engines.ray import run_on_ray
from fedapp.engines.resources import Engine, Resources


@pytest.mark.parametrize("clients", [float("inf"), float("nan"), "many"])
def test_a_number_of_clients_that_is_none_is_one_sentence(monkeypatch, capsys, clients):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(simulation, "leave", leave)
    values = settings(num_clients=clients)
    with pytest.raises(SystemExit) as left:
        simulation.simulate(values, Resources(), Engine.WORKERS, "server:app", "client:app")
    assert left.value.code == simulation.MISTAKE
    assert "fedapp: run-config key 'num-clients' is" in capsys.readouterr().err


def test_workers_of_a_ray_cluster_have_the_variables_of_the_run(monkeypatch):
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "mine.py")
    monkeypatch.setenv("FEDAPP_STATE", "of the run")
    app = ConfiguredClientApp(f"{__name__}:variables", settings())
    monkeypatch.delenv("FEDAPP_EXTENSIONS")
    monkeypatch.setenv("FEDAPP_STATE", "of the host")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    assert app(None, context) == ("mine.py", "of the host")


def variables(message, context):
    return os.environ["FEDAPP_EXTENSIONS"], os.environ["FEDAPP_STATE"]


def test_ray_that_does_not_start_is_one_sentence(monkeypatch):
    def init(**options):
        raise RuntimeError("The current node timed out during startup.\nmore")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(UserError, match=r"^Ray did not start: The current .* --engine workers$"):
        run_on_ray(None, "client:app", Resources(2, 1, 0.0), Future())
