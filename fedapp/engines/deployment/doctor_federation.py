"""Checks for a federation: certificates, clock, ports.

With a wrong clock, an expired certificate or a missing name in it, a SuperNode always behaves in
the same way: it retries for ever. These checks report each cause before the node joins.
"""

import errno
import http.client
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature

from fedapp.core.errors import UserError
from fedapp.engines.deployment.certificates import (
    CA_CERTIFICATE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    names_of,
    read_certificate,
    read_private_key,
)
from fedapp.engines.deployment.doctor import Check, attempt

_RENEW_DAYS = 14
_CLOCK_SECONDS = 5.0  # Flower refuses signed requests with a larger difference of clocks
_CONNECT_SECONDS = 10


def examine_federation(
    certificates: Path | None, superlink: str, ports: list[int]
) -> Iterator[Check]:
    """Run the requested checks.

    Args:
        certificates: folder of `fedapp certificates`, or the part of it for a node.
        superlink: HOST:PORT of the SuperLink, to check TLS and, on its control API, the clocks.
        ports: TCP ports that must be free on this machine.
    """
    if certificates is not None:
        try:
            yield from [*_certificates(certificates), *_private_files(certificates)]
        except PermissionError as error:
            yield Check("certificates", False, f"this user cannot read {error.filename}")
    if superlink:
        yield attempt("SuperLink", lambda: _connect(superlink, certificates))
    for port in ports:
        yield attempt(f"port {port}", lambda port=port: _free(port))  # type: ignore[misc]


def _certificates(folder: Path) -> Iterator[Check]:
    for file in (folder / CA_CERTIFICATE, folder / SERVER_CERTIFICATE):
        if file.exists() or file.name == CA_CERTIFICATE:
            yield attempt(file.name, lambda file=file: _validity(file))  # type: ignore[misc]
    if (folder / SERVER_KEY).exists():
        yield attempt(SERVER_KEY, lambda: _pair(folder))


def _validity(file: Path) -> str:
    """Return a certificate's validity and names; raises UserError if it is not valid now."""
    certificate = read_certificate(file)
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        raise UserError(f"valid only from {certificate.not_valid_before_utc}: is the clock right?")
    if now > end:
        raise UserError(f"expired on {end:%Y-%m-%d}: fedapp certificates {file.parent} --renew")
    names = names_of(certificate)
    advice = "; renew it soon" if end - now < timedelta(days=_RENEW_DAYS) else ""
    return f"valid until {end:%Y-%m-%d}{advice}" + (f", for {', '.join(names)}" if names else "")


def _pair(folder: Path) -> str:
    key = read_private_key(folder / SERVER_KEY)
    certificate = read_certificate(folder / SERVER_CERTIFICATE)
    if key.public_key() != certificate.public_key():
        raise UserError(f"belongs to another certificate than {SERVER_CERTIFICATE}")
    try:
        certificate.verify_directly_issued_by(read_certificate(folder / CA_CERTIFICATE))
    except (InvalidSignature, TypeError, ValueError):
        # CAs of two federations have the same name; only the signature distinguishes them
        raise UserError(
            f"{SERVER_CERTIFICATE} was issued by another CA than that of {CA_CERTIFICATE}"
        ) from None
    return f"belongs to {SERVER_CERTIFICATE}"


def _private_files(folder: Path) -> Iterator[Check]:
    """Check that only their owner can read the private keys."""
    for file in sorted(folder.iterdir() if folder.is_dir() else ()):
        if file.suffix == ".key" or _has_key(file):
            mode = stat.S_IMODE(file.stat().st_mode)
            private = not mode & 0o077
            description = f"mode {mode:o}" + (
                "" if private else f"; others can read it: chmod 600 {file}"
            )
            yield Check(f"secret {file.name}", private, description)


def _has_key(file: Path) -> bool:
    """Return whether a readable file begins like a private key in PEM."""
    try:
        with file.open("rb") as content:
            return b"PRIVATE KEY" in content.read(64)
    except OSError:
        return False


def _connect(superlink: str, certificates: Path | None) -> str:
    """Connect to a SuperLink with TLS and, if its port supports HTTP, compare the clocks."""
    host, _, port = superlink.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"--superlink is {superlink!r} but must be HOST:PORT")
    authority = certificates / CA_CERTIFICATE if certificates else None
    if authority:
        read_certificate(authority)
    trust = ssl.create_default_context(cafile=str(authority) if authority else None)
    address = host.strip("[]")
    connection = http.client.HTTPSConnection(
        address, int(port), timeout=_CONNECT_SECONDS, context=trust
    )
    date = None
    try:
        connection.connect()
        with suppress(http.client.HTTPException, ConnectionError):  # the SuperNodes' port uses gRPC
            connection.request("GET", "/health")
            date = connection.getresponse().headers.get("Date")
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"its certificate is refused: {error.verify_message}") from None
    except ssl.SSLError:
        raise UserError(f"{superlink} does not speak TLS") from None
    except OSError as error:
        raise UserError(
            f"{superlink} does not answer ({error.strerror or error}): is this its address, does "
            "it run, and does no firewall close the port?"
        ) from None
    finally:
        connection.close()
    if date is None:
        return "answers over TLS; it sends no time to compare clocks with"
    seconds = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    if abs(seconds) > _CLOCK_SECONDS:
        raise UserError(f"the clocks differ by {seconds:.0f} s: synchronise them (NTP)")
    return f"answers over TLS; the clocks agree within {max(abs(seconds), 1):.0f} s"


def _free(port: int) -> str:
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except PermissionError:
        raise UserError("this user may not listen on it: choose one from 1024 on") from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise UserError("something listens on it already: choose another or stop that") from None
    return "free"
