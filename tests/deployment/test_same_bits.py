"""The same code, proved: real SuperNodes give the model that plain calls give, bit for bit.

One of the two nodes answers through its warm worker, so the equality is also of that path.
"""

import pytest
from in_process import assert_same, federate, settings
from safetensors.numpy import load_file

METHODS: dict[str, dict] = {"feddr+": {}, "scaffold": {}}
ROUNDS = {"num_rounds": 2, "num_clients": 2, "shards": 5, "local_epochs": 1, "participation": 1.0}


@pytest.mark.parametrize("method", METHODS)
def test_real_nodes_and_plain_calls_agree(federation, method):
    keys = {"method": method, **ROUNDS, **METHODS[method]}
    log = federation.run(f"same-{method}", **keys)
    assert federation.status() == "finished:completed", log
    expected = federate(settings(**keys), nodes=1)[0]
    found = load_file(federation.directory(f"same-{method}") / "model.safetensors")
    assert_same(expected, {name: found[name] for name in expected})
    assert [row["clients"] for row in federation.rows(f"same-{method}")] == [2, 2]
    assert "no help" not in federation.nodes[1].text()
