"""What is refused: unknown keys, plain text, expired certificates, runs that cannot be."""

import http.client
import json
import socket
import ssl
from datetime import UTC, datetime, timedelta

import pytest

from deployment.federation import Program
from fedapp.engines.deployment.certificates import renew_server_certificate

STRANGER = 2  # has a key of the federation's own kind, but nobody registered it


def verdict(node: Program) -> tuple[int, str]:
    """Wait until a SuperNode gives up; its exit code and its log."""
    try:
        return node.process.wait(60), node.text()
    finally:
        node.stop()


def known_nodes(federation) -> int:
    listed = federation.flwr("supernode", "list", "tls", "--format", "json")
    return len(json.loads(listed)["nodes"])


def test_a_node_with_an_unknown_key_is_rejected(federation):
    code, log = verdict(federation.start_node(STRANGER))
    assert code != 0
    assert "Failed to activate SuperNode" in log or "UNAUTHENTICATED" in log.upper(), log
    assert known_nodes(federation) == 2


def test_a_node_without_a_key_is_rejected(federation):
    code, log = verdict(federation.start_node(STRANGER, auth_supernode_private_key=""))
    assert code != 0, log


def test_plain_text_against_tls_is_rejected(federation):
    plain = {"auth_supernode_private_key": "", "root_certificates": "", "insecure": "yes"}
    code, log = verdict(federation.start_node(STRANGER, **plain, max_retries="1"))
    assert code != 0, log
    control = http.client.HTTPConnection("127.0.0.1", federation.control, timeout=5)
    control.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        control.getresponse()


def test_a_mistake_is_one_sentence_in_the_stream_and_fails_the_run(federation):
    log = federation.run("mistake", shards=3, num_clients=7)
    assert federation.status() == "finished:failed"
    assert "fedapp: 7 clients x 3 shards = 21 shards cannot be divided" in log
    assert 'File "' not in log


def test_an_expired_certificate_is_rejected(new_federation):
    """The SuperLink shows a certificate of the right CA that ended eight days ago."""
    federation = new_federation(nodes=1)
    past = datetime.now(UTC) - timedelta(days=9)
    renew_server_certificate(federation.certificates, [], days=1, start=past)
    federation.start_superlink()
    node = federation.start_node(0, of=1, max_retries="1")
    trust = ssl.create_default_context(cafile=str(federation.certificates / "ca.crt"))
    with (
        socket.create_connection(("127.0.0.1", federation.control)) as plain,
        pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"),
    ):
        trust.wrap_socket(plain, server_hostname="127.0.0.1")
    assert "unavailable" in federation.flwr("ls", "tls", check=False)
    code, log = verdict(node)
    assert code != 0, log
    assert "SuperNode ID" not in log
