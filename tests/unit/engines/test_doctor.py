"""`fedapp doctor`: each thing that can be wrong with a node has its own sentence."""

import json
import shutil
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from PIL import Image
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.engines.deployment import doctor
from fedapp.engines.deployment.certificates import make_certificates, renew_server_certificate
from fedapp.engines.deployment.doctor import examine
from fedapp.engines.deployment.doctor_federation import examine_federation


@pytest.fixture
def pki(tmp_path):
    make_certificates(tmp_path / "pki", ["superlink.example.org"], 1)
    return tmp_path / "pki"


def federation(certificates=None, superlink="", ports=()):
    return {check.name: check for check in examine_federation(certificates, superlink, ports)}


def test_a_folder_of_another_user_is_a_failed_check(pki, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    check = federation(pki)["certificates"]
    assert not check.ok
    assert check.found == f"this user cannot read {pki}"


def test_a_certificate_that_is_missing_is_named(tmp_path):
    found = federation(tmp_path / "nowhere", "localhost:1")
    missing = f"cannot read {tmp_path / 'nowhere' / 'ca.crt'}: No such file or directory"
    assert found["SuperLink"].found == missing


def test_good_certificates_pass_with_end_and_names(pki):
    found = federation(pki)
    assert all(check.ok for check in found.values())
    assert set(found) == {
        "ca.crt", "superlink.crt", "superlink.key", "secret ca.key", "secret superlink.key",
        "secret node-0",
    }  # fmt: skip
    assert "superlink.example.org" in found["superlink.crt"].found
    assert "127.0.0.1" in found["superlink.crt"].found


def test_a_node_needs_only_the_ca_and_its_key(pki, tmp_path):
    node = tmp_path / "node"
    node.mkdir()
    for name in ("ca.crt", "node-0", "node-0.pub"):
        shutil.copy(pki / name, node / name)
    assert {name: check.ok for name, check in federation(node).items()} == {
        "ca.crt": True,
        "secret node-0": True,
    }
    assert not federation(tmp_path)["ca.crt"].ok


@pytest.mark.parametrize(("age", "sentence"), [(9, "expired on"), (-9, "is the clock right?")])
def test_a_certificate_out_of_its_time_is_said(pki, age, sentence):
    renew_server_certificate(pki, [], days=1, start=datetime.now(UTC) - timedelta(days=age))
    check = federation(pki)["superlink.crt"]
    assert not check.ok
    assert sentence in check.found


def test_a_certificate_about_to_expire_is_said(pki):
    renew_server_certificate(pki, [], days=3)
    check = federation(pki)["superlink.crt"]
    assert check.ok
    assert "renew it soon" in check.found


def test_a_key_of_another_certificate_and_a_readable_key_are_said(pki, tmp_path):
    make_certificates(tmp_path / "other", [], 0)
    shutil.copy(tmp_path / "other" / "superlink.key", pki / "superlink.key")
    (pki / "node-0").chmod(0o644)
    (pki / "node-0.pub").unlink()  # as on a SuperNode's host
    found = federation(pki)
    assert "another certificate" in found["superlink.key"].found
    assert found["secret node-0"].found.startswith("mode 644; others can read it")


def test_a_certificate_of_another_federation_is_said(pki, tmp_path):
    make_certificates(tmp_path / "other", [], 0)
    shutil.copy(tmp_path / "other" / "ca.crt", pki / "ca.crt")
    check = federation(pki)["superlink.key"]
    assert not check.ok
    assert check.found == "superlink.crt was issued by another CA than that of ca.crt"


def test_a_key_with_a_password_is_said(pki):
    key = ec.generate_private_key(ec.SECP384R1())
    locked = BestAvailableEncryption(b"secret")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    (pki / "superlink.key").write_bytes(pem)
    check = federation(pki)["superlink.key"]
    assert "has no readable private key: Password was not given" in check.found


def test_a_port_that_needs_rights_is_said(monkeypatch):
    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    check = federation(ports=[80])["port 80"]
    assert (check.ok, "may not listen on it" in check.found) == (False, True)


def test_a_port_that_does_not_exist_is_refused():
    for arguments in (["--port", "70000"], ["--port", "0"]):
        assert CliRunner().invoke(cli.app, ["doctor", *arguments]).exit_code == 2
    assert "must be HOST:PORT" in federation(superlink="127.0.0.1:70000")["SuperLink"].found


def test_a_port_in_use_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not federation(ports=[port])[f"port {port}"].ok
    assert federation(ports=[port])[f"port {port}"].ok


@pytest.fixture
def serve():
    """Start a web server that says it is `ahead` seconds later than it is; gives its address."""
    servers = []

    def start(ahead: float = 0, pki=None) -> str:
        class Clock(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.end_headers()

            def date_time_string(self, timestamp=None):
                return format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)

            def log_message(self, *arguments): ...

        server = HTTPServer(("127.0.0.1", 0), Clock)
        if pki:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pki / "superlink.crt", pki / "superlink.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_tls_and_clock_of_the_superlink(pki, serve):
    good = federation(pki, serve(0, pki))["SuperLink"]
    assert good.ok, good.found
    late = federation(pki, serve(-120, pki))["SuperLink"]
    assert "the clocks differ by 1" in late.found
    assert not late.ok


def test_a_port_that_speaks_tls_but_no_http_has_no_clock_to_compare(pki):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "superlink.crt", pki / "superlink.key")

    def answer_once():
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.close()

    plain = socket.create_server(("127.0.0.1", 0))
    with context.wrap_socket(plain, server_side=True) as listener:
        threading.Thread(target=answer_once, daemon=True).start()
        check = federation(pki, f"127.0.0.1:{listener.getsockname()[1]}")["SuperLink"]
    assert (check.ok, check.found) == (
        True, "answers over TLS; it sends no time to compare clocks with"
    )  # fmt: skip


def test_a_superlink_that_is_wrong_or_absent_is_said(pki, serve, tmp_path):
    assert "does not speak TLS" in federation(pki, serve())["SuperLink"].found
    make_certificates(tmp_path / "other", [], 0)
    stranger = federation(pki, serve(0, tmp_path / "other"))["SuperLink"]
    assert "its certificate is refused" in stranger.found
    absent = "127.0.0.1:1 does not answer (Connection refused): is this its address, does it run"
    assert federation(pki, "127.0.0.1:1")["SuperLink"].found.startswith(absent)
    unknown = federation(pki, "superlink.invalid:8000")["SuperLink"].found
    assert unknown.startswith("superlink.invalid:8000 does not answer (")
    assert "must be HOST:PORT" in federation(pki, "superlink")["SuperLink"].found


def test_packages_are_held_against_what_the_project_asks_for(monkeypatch):
    versions = {"flwr": "1.42.0", "torch": "2.11.0+cpu", "torchvision": ""}
    monkeypatch.setattr(doctor, "_installed", versions.get)
    found = {check.name: check for check in doctor._versions()}
    assert [found[name].ok for name in ("Python", *versions)] == [True, False, True, False]
    assert found["flwr"].found == "1.42.0; <1.42,>=1.39 is needed"
    assert found["torchvision"].found == "not installed; >=0.26 is needed"


def test_data_that_is_not_there_is_said(tmp_path):
    found = {check.name: check for check in examine("images", str(tmp_path))}
    assert not found["data"].ok
    assert "no folder 'train'" in found["data"].found


def test_a_hosts_own_images_are_checked_by_the_names_of_the_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        folder = tmp_path / "data" / "train" / name
        folder.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(folder / "one.png")

    def found(folder, classes):
        return {each.name: each for each in examine("digits", str(folder), classes)}["data"]

    assert found(tmp_path / "data", "cat dog owl").found == (
        "2 training images and 0 test images of its own"
    )
    assert "none of the run's classes (cat, owl)" in found(tmp_path / "data", "cat owl").found
    missing = found(tmp_path / "nowhere", "cat owl")
    assert not missing.ok
    assert "does not exist" in missing.found


def test_the_command_fails_when_a_check_fails(pki):
    (pki / "ca.crt").write_text("nonsense")
    arguments = ["doctor", "--certificates", str(pki), "--json"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 1
    rows = {row["check"]: row for row in json.loads(done.stdout)}
    assert "is not a PEM certificate" in rows["ca.crt"]["found"]
