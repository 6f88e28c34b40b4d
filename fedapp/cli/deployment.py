"""The commands for real hosts: certificates and keys, and the check of a machine.

Slow imports are inside the commands, so that `--help` is fast.
"""

from pathlib import Path
from typing import Annotated

import typer

from fedapp.cli.options import AsJson, Overrides, Project, show
from fedapp.core.errors import UserError
from fedapp.engines.deployment.doctor import Check, examine

Ports = Annotated[
    list[int] | None,
    typer.Option(min=1, max=65535, help="A port that must be free on this host; may be repeated."),
]


def certificates(
    folder: Annotated[
        Path, typer.Argument(help="Folder for the files; a new one is for you alone.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A DNS name or IP address of the SuperLink; may be repeated."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=0, help="Number of SuperNode key pairs; default: 4.")
    ] = None,
    days: Annotated[
        int,
        typer.Option(min=1, max=3650, help="Days for which the SuperLink's certificate is valid."),
    ] = 365,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Only renew the SuperLink's certificate; without --host: for the same names.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a CA, the SuperLink's TLS certificate and one key pair per SuperNode.

    Example: fedapp certificates certificates --host superlink.example.org --host 10.0.0.5 --nodes 4
    """
    from fedapp.engines.deployment.certificates import make_certificates, renew_server_certificate

    if renew and nodes is not None:
        raise UserError("--renew makes no keys of nodes: leave --nodes out")
    if renew:
        files = renew_server_certificate(folder, host or [], days)
    else:
        files = make_certificates(folder, host or [], 4 if nodes is None else nodes, days)
    rows = [{"file": str(file), "for": _audience(file)} for file in files]
    show("Certificates and keys", rows, as_json)


def doctor(
    certificates: Annotated[
        Path | None, typer.Option(help="Folder of `fedapp certificates`, or of one node's files.")
    ] = None,
    superlink: Annotated[
        str,
        typer.Option(
            help="HOST:PORT of a SuperLink: test TLS; at its control API also compare clocks."
        ),
    ] = "",
    port: Ports = None,
    dataset: Annotated[str, typer.Option(help="A data set that this host must have.")] = "digits",
    data_dir: Annotated[str, typer.Option(help="Folder that holds this data set.")] = "",
    classes: Annotated[
        str, typer.Option(help="Partition 'own': the run's classes; --data-dir has this host's.")
    ] = "",
    image_size: Annotated[
        int, typer.Option(min=0, help="The run's image-size, if its images are scaled.")
    ] = 0,
    test_share: Annotated[
        float, typer.Option(min=0.0, max=0.9, help="The run's test-share, if images are held out.")
    ] = 0.0,
    config: Overrides = None,
    project: Project = Path("."),
    as_json: AsJson = False,
) -> None:
    """Check this machine before it joins: versions, devices, data, disks, certificates, clock.

    With -c it also says what that run's configuration protects.

    Example: fedapp doctor --certificates certificates --superlink superlink.example.org:8000
    """
    from fedapp.engines.deployment.doctor_federation import examine_federation

    checks = examine(dataset, data_dir, classes, image_size, test_share)
    checks += examine_federation(certificates, superlink, port or [])
    checks += _protections(project, config) if config else []
    show("Checks", [check.row() for check in checks], as_json)
    raise SystemExit(0 if all(check.ok for check in checks) else 1)


def _protections(project: Path, config: list[str]) -> list[Check]:
    from fedapp.engines.deployment.protections import protections_of  # imports NumPy

    return list(protections_of(project, config))


def _audience(file: Path) -> str:
    """Return who needs a file; of the SuperLink's certificate also its names."""
    from fedapp.engines.deployment.certificates import (
        SERVER_CERTIFICATE,
        names_of,
        read_certificate,
    )

    if file.name == SERVER_CERTIFICATE:
        names = ", ".join(names_of(read_certificate(file)))
        return f"the SuperLink, which nodes must reach as one of: {names}"
    known = {
        "ca.crt": "all hosts: SuperLink, SuperNodes and machines that start runs",
        "ca.key": "no host: keep it offline; `--renew` needs it",
        "superlink.key": "the SuperLink, secret",
    }
    public = "the machine that starts runs, once: flwr supernode register"
    return known.get(file.name, public if file.suffix == ".pub" else "only this SuperNode, secret")
