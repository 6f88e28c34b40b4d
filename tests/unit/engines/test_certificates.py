"""Certificates and keys: what is in them, who may read them, and that none is overwritten."""

import json
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from typer.testing import CliRunner

from fedapp.cli import app as cli
from fedapp.core.errors import UserError
from fedapp.engines.deployment import certificates
from fedapp.engines.deployment.certificates import (
    make_certificates,
    names_of,
    read_certificate,
    renew_server_certificate,
)


@pytest.fixture
def folder(tmp_path):
    make_certificates(tmp_path / "pki", ["superlink.example.org", "10.0.0.5"], nodes=2)
    return tmp_path / "pki"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_certificate_names_the_hosts_and_loopback(folder):
    names = names_of(read_certificate(folder / "superlink.crt"))
    assert names == ["superlink.example.org", "localhost", "10.0.0.5", "127.0.0.1", "::1"]


def test_a_client_that_trusts_the_ca_accepts_the_certificate(folder):
    """The handshake in memory, with the checks that every TLS client makes."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "superlink.crt", folder / "superlink.key")
    client = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert handshake(server, client, "superlink.example.org") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(server, client, "elsewhere.example.org")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> str | None:
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_hostname=name)
    answering = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return asking.version()


def test_node_keys_are_what_flower_reads(folder):
    private = load_ssh_private_key((folder / "node-1").read_bytes(), None)
    public = load_ssh_public_key((folder / "node-1.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert (folder / "node-0.pub").read_bytes() != (folder / "node-1.pub").read_bytes()


def test_secrets_are_private_and_the_folder_is_closed(folder):
    assert mode(folder) == 0o700
    assert {mode(folder / name) for name in ("ca.key", "superlink.key", "node-0", "node-1")} == {
        0o600
    }
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_nothing_is_overwritten(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match=r"ca\.crt exists, and keys are never overwritten"):
        make_certificates(folder, ["other"], nodes=3)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_renewing_keeps_the_ca(folder):
    authority = (folder / "ca.crt").read_bytes()
    old = read_certificate(folder / "superlink.crt")
    renew_server_certificate(folder, ["new.example.org"], days=30)
    new = read_certificate(folder / "superlink.crt")
    assert (folder / "ca.crt").read_bytes() == authority
    assert new.serial_number != old.serial_number
    assert "new.example.org" in names_of(new)
    new.verify_directly_issued_by(read_certificate(folder / "ca.crt"))
    assert mode(folder / "superlink.key") == 0o600


def test_renewing_without_hosts_keeps_the_names(folder):
    old = names_of(read_certificate(folder / "superlink.crt"))
    renew_server_certificate(folder, [])
    assert names_of(read_certificate(folder / "superlink.crt")) == old
    assert len(old) > 3  # more than loopback
    (folder / "superlink.crt").unlink()
    with pytest.raises(UserError, match=r"cannot read .*superlink\.crt: No such file"):
        renew_server_certificate(folder, [])


def test_renewing_without_a_ca_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*ca\.crt: No such file"):
        renew_server_certificate(tmp_path, ["x"])


def test_a_ca_key_that_cannot_sign_here_is_one_sentence(folder):
    rsa_key = rsa.generate_private_key(65537, 2048)
    for encryption, words in (
        (NoEncryption(), "is not a key on an elliptic curve"),
        (BestAvailableEncryption(b"secret"), "has no readable private key"),
    ):
        pem = rsa_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        (folder / "ca.key").write_bytes(pem)
        with pytest.raises(UserError, match=rf"ca\.key .*{words}"):
            renew_server_certificate(folder, [])


def test_an_expired_certificate_can_be_told(tmp_path):
    make_certificates(tmp_path, [], 0, days=1, start=datetime.now(UTC) - timedelta(days=9))
    assert read_certificate(tmp_path / "superlink.crt").not_valid_after_utc < datetime.now(UTC)


@pytest.mark.parametrize(
    "host",
    [
        "bücher.example", "h.example:8000", "https://h.example", "h,10.0.0.5", "10.0.0.5/24",
        "[::1]", "a b", "", "10.0.0.300", "-h.example", "h..example", "a" * 64,
    ],
)  # fmt: skip
def test_a_host_that_is_no_name_is_refused(tmp_path, host):
    with pytest.raises(UserError, match="neither an IP address nor an ASCII DNS name"):
        make_certificates(tmp_path / "pki", [host], 0)
    good = ["buecher.example", "super_link", "*.h.example", "h1", "fe80::1"]
    make_certificates(tmp_path / "pki", good, 0)  # the first try left nothing


def test_the_command_lists_files_and_prints_no_key(tmp_path):
    done = CliRunner().invoke(
        cli.app, ["certificates", str(tmp_path / "c"), "--host", "h.example", "--nodes", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "PRIVATE" not in done.output
    assert (tmp_path / "c" / "node-0.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert "h.example" in names_of(read_certificate(tmp_path / "c" / "superlink.crt"))


def test_the_command_names_the_addresses_of_the_superlink(tmp_path):
    """Without --host nodes can reach it on their own host only."""
    for name, hosts in (("a", []), ("b", ["--host", "h.example"])):
        command = ["certificates", str(tmp_path / name), *hosts, "--nodes", "1", "--json"]
        done = CliRunner().invoke(cli.app, command)
        rows = {Path(row["file"]).name: row["for"] for row in json.loads(done.stdout)}
        names = "".join(f"{host}, " for host in hosts[1:]) + "localhost, 127.0.0.1, ::1"
        assert rows["superlink.crt"] == f"the SuperLink, which nodes must reach as one of: {names}"


def test_openssl_agrees(folder):
    command = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "superlink.crt"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl program here")
    assert done.stdout.strip() == "superlink.crt: OK", done.stderr


def full_at(monkeypatch, call):
    """Let the disk be full at one write of the certificates."""
    written, write = [], certificates.write_atomically

    def refuse(path, *rest):
        written.append(path)
        if len(written) == call:
            raise OSError(28, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(certificates, "write_atomically", refuse)


@pytest.mark.parametrize("call", [1, 4, 8])
def test_a_full_disk_leaves_no_file_that_blocks_the_next_attempt(tmp_path, monkeypatch, call):
    with monkeypatch.context() as full:
        full_at(full, call)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
            make_certificates(tmp_path / "pki", ["host"], nodes=2)
    assert not list((tmp_path / "pki").iterdir())
    assert len(make_certificates(tmp_path / "pki", ["host"], nodes=2)) == 8


def test_a_full_disk_leaves_the_old_pair_when_it_is_renewed(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    full_at(monkeypatch, 2)
    with pytest.raises(UserError, match="No space left on device"):
        renew_server_certificate(folder, ["new.example.org"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
