"""The credentials of a federation: a CA, the SuperLink's certificate, SuperNode keys.

TLS authenticates the SuperLink to the nodes, and a key pair authenticates each node to the
SuperLink. Flower requires PEM for the first and OpenSSH's format, elliptic curve P-384, for the
second. Private files are created with mode 0600, a new folder with mode 0700, and no key is
printed. Either all files of a call are written or none.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedapp.core.errors import UserError
from fedapp.core.files import write_atomically

CA_CERTIFICATE, CA_KEY = "ca.crt", "ca.key"
SERVER_CERTIFICATE, SERVER_KEY = "superlink.crt", "superlink.key"
# The SuperLink's own ServerApp process connects over loopback, so these names are always included.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CA_DAYS = 3650
_PRIVATE = 0o600
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)*(?!\d+$){_LABEL}")
_CLOCK_SLACK = timedelta(minutes=5)  # nodes with slow clocks must accept it


def make_certificates(
    folder: Path,
    hosts: Sequence[str],
    nodes: int,
    days: int = 365,
    start: datetime | None = None,
) -> list[Path]:
    """Create all credentials of a new federation; return the created files.

    Args:
        folder: the folder of the files, created with mode 0700.
        hosts: DNS names and IP addresses by which nodes reach the SuperLink.
        nodes: number of SuperNode key pairs, `node-0`, `node-0.pub` and so on.
        days: validity of the SuperLink's certificate; the CA's is valid for ten years.
        start: the start of the validity, by default now.

    Raises:
        UserError: a file would be overwritten or cannot be written, or a host is invalid.
    """
    keys = [folder / f"node-{number}" for number in range(nodes)]
    fixed = [folder / name for name in (CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE, SERVER_KEY)]
    files = [*fixed, *keys, *(key.with_suffix(".pub") for key in keys)]
    if existing := [file for file in files if file.exists()]:
        raise UserError(
            f"{existing[0]} exists, and keys are never overwritten: name another folder, or renew "
            "the SuperLink's certificate alone with --renew"
        )
    start = start or datetime.now(UTC)
    names = _all_names(hosts)  # first, because written files would block the next attempt
    key, authority = _authority(start)
    contents = {
        folder / CA_KEY: _pem(key),
        folder / CA_CERTIFICATE: authority.public_bytes(Encoding.PEM),
        **_server_files(folder, authority, key, names, days, start),
    }
    for file in keys:
        contents |= _node_files(file)
    _write_all(folder, contents)
    return files


def renew_server_certificate(
    folder: Path, hosts: Sequence[str], days: int = 365, start: datetime | None = None
) -> list[Path]:
    """Replace the SuperLink's certificate and key with new ones from the folder's CA.

    Without `hosts` the certificate is valid for those of the old one. The nodes trust the CA, so
    nothing changes for them. Raises UserError if there is no CA, or neither hosts nor an old
    certificate.
    """
    hosts = hosts or names_of(read_certificate(folder / SERVER_CERTIFICATE))
    authority = read_certificate(folder / CA_CERTIFICATE)
    key = read_private_key(folder / CA_KEY)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{folder / CA_KEY} is not a key on an elliptic curve, as this CA needs")
    start = start or datetime.now(UTC)
    _write_all(folder, _server_files(folder, authority, key, _all_names(hosts), days, start))
    return [folder / SERVER_CERTIFICATE, folder / SERVER_KEY]


def read_certificate(file: Path) -> x509.Certificate:
    """Read a PEM certificate; raises UserError if the file has none."""
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{file} is not a PEM certificate: {error}") from None


def read_private_key(file: Path) -> PrivateKeyTypes:
    """Read a PEM key; raises UserError if the file has none, or one with a password."""
    try:
        return load_pem_private_key(file.read_bytes(), None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"{file} has no readable private key: {error}") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses that a certificate is valid for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _write_all(folder: Path, contents: Mapping[Path, bytes]) -> None:
    """Write all files or none: first under other names, then they take their own.

    Raises UserError if a file cannot be written.
    """
    ready = {file.with_name(f".{file.name}.new"): file for file in contents}
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for temporary, file in ready.items():
            public = file.suffix in (".crt", ".pub")
            write_atomically(temporary, contents[file], 0o666 if public else _PRIVATE)
        for temporary, file in ready.items():
            temporary.replace(file)
    except OSError as error:
        for temporary in ready:
            with suppress(OSError):
                temporary.unlink()
        raise UserError(f"cannot write certificates to {folder}: {error.strerror}") from None


def _authority(start: datetime) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return the key and the certificate of a new CA."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedapp federation CA")])
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(name, name, key.public_key(), start, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def _server_files(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: x509.SubjectAlternativeName,
    days: int,
    start: datetime,
) -> dict[Path, bytes]:
    """Return the SuperLink's new key and certificate, by file."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedapp superlink")])
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(subject, authority.subject, key.public_key(), start, days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issued_by, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    return {
        folder / SERVER_KEY: _pem(key),
        folder / SERVER_CERTIFICATE: certificate.public_bytes(Encoding.PEM),
    }


def _node_files(file: Path) -> dict[Path, bytes]:
    """Return a SuperNode's new key and its public half, by file."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {file: secret, file.with_suffix(".pub"): public + f" {file.name}\n".encode()}


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    start: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _CLOCK_SLACK)
        .not_valid_after(start + timedelta(days=days))
    )


def _all_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(
        [_general_name(host) for host in dict.fromkeys((*hosts, *_LOOPBACK))]
    )


def _general_name(host: str) -> x509.GeneralName:
    """Return a host's entry in a certificate; raises UserError if it is no name or address."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host):
        raise UserError(
            f"host {host!r} is neither an IP address nor an ASCII DNS name, without port; repeat "
            "--host for further names"
        )
    return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
