"""The commands around real hosts: certificates and keys, and the check of a machine.

They are a module of their own because cli.py is for runs. Heavy imports happen inside the commands,
as there.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import AsJson, show
from fedapp.engines.deployment.doctor import examine


def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the files go; private to you.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A DNS name or IP address of the SuperLink; may be repeated."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="SuperNode key pairs to make.")] = 4,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Validity of the SuperLink's certificate.")
    ] = 365,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Only a new SuperLink certificate, same CA; no --host: same names."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a CA, the SuperLink's TLS certificate and one key pair per SuperNode.

    Example: fedapp certificates certificates --host superlink.example.org --host 10.0.0.5 --nodes 4
    """
    from fedapp.engines.deployment.certificates import make_certificates, renew_server_certificate

    if renew:
        files = renew_server_certificate(folder, host or [], days)
    else:
        files = make_certificates(folder, host or [], nodes, days)
    rows = [{"file": str(file), "for": _audience(file.name)} for file in files]
    show("Certificates and keys", rows, as_json)


def doctor(
    certificates: Annotated[
        Path | None, typer.Option(help="Folder of `fedapp certificates`, or a node's part of it.")
    ] = None,
    superlink: Annotated[
        str, typer.Option(help="HOST:PORT of one: try TLS and, on its control API, compare clocks.")
    ] = "",
    port: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65535, help="A port to listen on here; may be repeated."),
    ] = None,
    dataset: Annotated[str, typer.Option(help="A data set that this node must have.")] = "digits",
    data_dir: Annotated[str, typer.Option(help="The folder it lies in.")] = "",
    as_json: AsJson = False,
) -> None:
    """Check this machine before it joins: versions, devices, data, disks, certificates, clock.

    Example: fedapp doctor --certificates certificates --superlink superlink.example.org:8000
    """
    from fedapp.engines.deployment.doctor_federation import examine_federation

    checks = examine(dataset, data_dir)
    checks += examine_federation(certificates, superlink, port or [])
    show("Checks", [check.row() for check in checks], as_json)
    raise SystemExit(0 if all(check.ok for check in checks) else 1)


def _audience(name: str) -> str:
    """Say who needs a file."""
    known = {
        "ca.crt": "everybody: SuperNodes and those who start runs",
        "ca.key": "nobody: keep it away from the network, it is needed to renew",
        "superlink.crt": "the SuperLink",
        "superlink.key": "the SuperLink, secret",
    }
    public = "the SuperLink's operator: flwr supernode register"
    return known.get(name, public if name.endswith(".pub") else "this SuperNode alone, secret")


COMMANDS = (certificates, doctor)
