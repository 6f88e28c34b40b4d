"""Signed keys of secure aggregation: who is not known, and what is not signed, is refused."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from flwr.app import RecordDict
from in_process import assert_same, federate, settings

from fedapp.core.errors import UserError
from fedapp.engines.deployment.certificates import make_certificates
from fedapp.runtime.node.queries import labels
from fedapp.runtime.node.secure import keys_of
from strategies.rounds.records import Task
from strategies.rounds.report import RoundFailed
from strategies.secure.node import SecureNode
from strategies.secure.primitives import ProtocolBroken, new_secret, public_key
from strategies.secure.signatures import NodeKeys, encoded

SESSION = b"s" * 16
PRIVATE = [ec.generate_private_key(ec.SECP384R1()) for _ in range(4)]
KNOWN = frozenset(encoded(key.public_key()) for key in PRIVATE[:3])
RUN = settings(method="fedavg", participation=1.0, num_rounds=1)
SECURE = {**RUN, "secure-aggregation": "pairwise"}


def three(third: NodeKeys | None = None, session: bytes = SESSION) -> tuple[SecureNode, dict]:
    """Return node 1 of three, which requires signatures, and the list that a server sends it."""
    own = [NodeKeys(key, KNOWN) for key in PRIVATE[:2]] + [third or NodeKeys(PRIVATE[2], KNOWN)]
    nodes = [SecureNode(RecordDict(), 2 / 3, each) for each in own]
    keys = [
        node.advertise({"session": SESSION if party == 1 else session, "party": party})
        for party, node in enumerate(nodes, 1)
    ]
    listed = {"session": SESSION, "cohort": 3, "parties": [1, 2, 3]}
    for field in ("sealing", "masking", "signer", "signature"):
        listed[field + "s" * field.startswith("sign")] = [key[field] for key in keys]
    return nodes[0], listed


def test_a_node_shares_its_secrets_with_nodes_that_it_knows():
    node, listed = three()
    assert len(node.share_secrets(listed)["sealed"]) == 3


@pytest.mark.parametrize("field", ["sealing", "masking"])
def test_a_server_cannot_put_its_own_key_in_the_place_of_a_nodes(field):
    node, listed = three()
    listed[field][1] = public_key(new_secret())
    with pytest.raises(ProtocolBroken, match="the signature of party 2's keys is false"):
        node.share_secrets(listed)


def test_a_server_cannot_join_with_a_key_of_its_own_or_twice_with_a_nodes():
    node, listed = three(NodeKeys(PRIVATE[3], KNOWN))
    with pytest.raises(ProtocolBroken, match="does not know who has signed party 3's keys"):
        node.share_secrets(listed)
    node, listed = three(NodeKeys(PRIVATE[1], KNOWN))
    with pytest.raises(ProtocolBroken, match="two parties have signed with the same key"):
        node.share_secrets(listed)


def test_keys_of_an_earlier_session_are_refused():
    node, listed = three(session=b"t" * 16)
    with pytest.raises(ProtocolBroken, match="the signature of party 2's keys is false"):
        node.share_secrets(listed)


def test_a_list_without_signatures_is_refused():
    node, listed = three()
    del listed["signatures"]
    with pytest.raises(ProtocolBroken, match="no signatures of the parties' keys"):
        node.share_secrets(listed)


def test_a_server_cannot_propose_a_small_session_or_a_low_threshold():
    node, listed = three()
    node.keys = NodeKeys(PRIVATE[0], KNOWN, least=4)
    with pytest.raises(ProtocolBroken, match="3 parties, and this node requires 4"):
        node.share_secrets(listed)
    keys = NodeKeys(PRIVATE[0], KNOWN)
    with pytest.raises(ProtocolBroken, match="a secure-threshold of two thirds or more"):
        keys.check(SESSION, range(1, 8), {}, 4)


@pytest.fixture(scope="module")
def credentials(tmp_path_factory):
    """Keys of five nodes, as an engineer makes them, and each node's node-config."""
    folder = tmp_path_factory.mktemp("keys") / "federation"
    make_certificates(folder, ["127.0.0.1"], 5)
    peers = folder / "peers"
    peers.mkdir()
    for file in folder.glob("*.pub"):
        (peers / file.name).write_bytes(file.read_bytes())
    return [
        {"secure-key": str(folder / f"node-{number}"), "secure-peers": str(peers)}
        for number in range(5)
    ]


def test_nodes_that_sign_their_keys_train_the_model_of_a_plain_run(credentials):
    expected = federate(RUN, nodes=5)[0]
    assert_same(expected, federate(SECURE, nodes=5, node_configs=credentials)[0])


def test_a_node_that_does_not_sign_is_left_out_by_name(credentials):
    with pytest.raises(RoundFailed, match="it has not signed its keys, and other nodes have"):
        federate(SECURE, nodes=5, node_configs=credentials[:4])
    tolerant = {**SECURE, "tolerate-failures": True}
    strategy = federate(tolerant, nodes=5, node_configs=credentials[:4])[1]
    assert {failure.client for failure in strategy.report.failures} == {4, 9}


def test_a_node_that_confirms_something_else_is_left_out(credentials, monkeypatch):
    expected = federate(RUN, nodes=5)[0]
    confirm = NodeKeys.confirm
    liar = keys_of(credentials[1]).key.private_numbers()

    def lying(self, statement):
        false = self.key.private_numbers() == liar
        return confirm(self, b"other survivors" if false else statement)

    monkeypatch.setattr(NodeKeys, "confirm", lying)
    assert_same(expected, federate(SECURE, nodes=5, node_configs=credentials)[0])


def test_a_node_with_a_changed_signature_is_left_out(credentials, monkeypatch):
    def forged(self, session, party, keys):
        fields = sign(self, session, party, keys)
        return fields | {"signature": fields["signature"][::-1]} if party == 2 else fields

    sign = NodeKeys.sign
    monkeypatch.setattr(NodeKeys, "sign", forged)
    with pytest.raises(RoundFailed, match="the signature of party 2's keys is false"):
        federate(SECURE, nodes=5, node_configs=credentials)


def test_a_node_with_peers_sends_no_update_without_masks(credentials, monkeypatch):
    with pytest.raises(
        UserError, match=r"sends masked sums only .*secure-aggregation to 'pairwise'"
    ):
        federate(RUN, nodes=5, node_configs=credentials)
    # a false server
    monkeypatch.setattr("fedapp.runtime.node.identity.check_masked", lambda *_: None)
    with pytest.raises(RoundFailed, match="sends masked sums only"):
        federate(RUN, nodes=5, node_configs=credentials)


def test_a_node_with_peers_tells_no_class_counts(credentials):
    for node_config in credentials:
        with pytest.raises(UserError, match="sends masked sums only"):
            labels(None, SimpleNamespace(node_config=node_config))


@pytest.mark.parametrize("change", [{"separate": True}, {"summed": False}])
def test_a_node_with_peers_sends_no_update_beside_masked_sums(change, credentials, monkeypatch):
    """A false server asks for masks, and for models that masks do not hide."""
    read = Task.from_record
    monkeypatch.setattr(Task, "from_record", lambda record: replace(read(record), **change))
    with pytest.raises(RoundFailed, match="sends masked sums only"):
        federate(SECURE, nodes=5, node_configs=credentials)


def written(folder, private=b"", publics=()):
    """Write a private key and public keys; returns the node-config that names them."""
    (folder / "peers").mkdir()
    (folder / "key").write_bytes(private)
    for number, public in enumerate(publics):
        (folder / "peers" / f"{number}.pub").write_bytes(public)
    return {"secure-key": str(folder / "key"), "secure-peers": str(folder / "peers")}


def openssh(key):
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public(key):
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)


OTHER = Ed25519PrivateKey.generate()
THREE = [public(key) for key in PRIVATE[:3]]


@pytest.mark.parametrize(
    ("private", "publics", "words"),
    [
        (b"no key", THREE, "'secure-key': cannot read"),
        (openssh(OTHER), THREE, "has no P-384 key"),
        (
            openssh(PRIVATE[0]),
            THREE[:2],
            "has 2 files .*.pub, and secure aggregation needs at least 3",
        ),
        (openssh(PRIVATE[0]), [*THREE, b"no key"], "'secure-peers': cannot read .*3.pub"),
        (openssh(PRIVATE[0]), [*THREE, public(OTHER)], "3.pub is not the public half of a P-384"),
        (openssh(PRIVATE[3]), THREE, "no public key of this node's own .*copy its .pub file there"),
    ],
)
def test_unusable_keys_are_named(private, publics, words, tmp_path):
    with pytest.raises(UserError, match=words):
        keys_of(written(tmp_path, private, publics))


def test_a_missing_file_and_one_key_without_the_other_are_named(tmp_path):
    config = written(tmp_path, publics=THREE)
    with pytest.raises(UserError, match=r"cannot read .*none"):
        keys_of({**config, "secure-key": str(tmp_path / "none")})
    with pytest.raises(UserError, match="node-config has 'secure-peers' alone"):
        keys_of({"secure-peers": config["secure-peers"]})
    assert keys_of({}) is None


@pytest.mark.parametrize("value", [2, "many", 4.5])
def test_too_few_nodes_to_hide_among_are_refused(value, credentials):
    with pytest.raises(UserError, match=r"'secure-least' is .* but must be 3 or more"):
        keys_of({**credentials[0], "secure-least": value})
    assert keys_of({**credentials[0], "secure-least": 5}).least == 5
