"""The process of one simulation: a configuration that is wrong already where it is first used."""

import pytest
from in_process import settings

from fedapp.engines import simulation
from fedapp.engines.resources import Engine, Resources


@pytest.mark.parametrize("clients", [float("inf"), float("nan"), "many"])
def test_a_number_of_clients_that_is_none_is_one_sentence(monkeypatch, capsys, clients):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(simulation, "start_template", lambda values: None)
    monkeypatch.setattr(simulation, "leave", leave)
    values = settings(num_clients=clients)
    with pytest.raises(SystemExit) as left:
        simulation.simulate(values, Resources(), Engine.WORKERS, "server:app", "client:app")
    assert left.value.code == simulation.MISTAKE
    assert "fedapp: run-config key 'num-clients' is" in capsys.readouterr().err
