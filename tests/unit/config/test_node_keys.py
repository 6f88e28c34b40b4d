"""A misspelt key of a node-config is named before round 1: it would protect nothing."""

import re

import pytest
from in_process import federate, settings
from project_tree import ROOT

from fedapp.config.node_keys import NODE_KEYS, check_node_config
from fedapp.core.errors import UserError
from fedapp.runtime.node.secure import keys_of

PLACE = {"partition-id": 0, "num-partitions": 1}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("secure_key", "secure-key"),
        ("secure-peer", "secure-peers"),
        ("privacy_epsilon", "privacy-epsilon"),
        ("Data-Dir", "data-dir"),
        ("state-dirs", "state-dir"),
    ],
)
def test_a_key_that_is_nearly_one_of_fedapps_is_refused(key, meant):
    sentence = f"node-config key '{key}' does not exist; did you mean '{meant}'?"
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_node_config({**PLACE, key: "x"})


def test_keys_of_the_operator_and_of_fedapp_are_taken():
    check_node_config({**PLACE, "hospital": "north", "rack": 3})
    check_node_config(dict.fromkeys(NODE_KEYS, "x"))


def test_a_number_of_nodes_without_their_keys_is_refused():
    with pytest.raises(UserError, match="'secure-least' without 'secure-key'"):
        keys_of({**PLACE, "secure-least": 3})


def test_the_server_names_the_node_before_round_1():
    with pytest.raises(UserError, match=r"node .*'secure_key' does not exist; did you mean"):
        federate(settings(), nodes=2, node_configs=[{"secure_key": "x"}, {}])


def test_every_key_that_is_read_is_known():
    text = "".join(file.read_text() for file in (ROOT / "fedapp").rglob("*.py"))
    read = re.findall(r'node_config(?:\.get\(|\[)"([\w-]+)"', text)
    assert len(read) > 3
    assert set(read) <= set(NODE_KEYS)
