"""The app's own pyproject.toml: its default configuration and components."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapp.core.errors import UserError
from fedapp.core.paths import absolute

PACKAGES = ("fedapp", "strategies", "clients")  # of the app
SERVER_APP = "fedapp.server_app:app"
_CHECKOUT = Path(__file__).parents[2]  # it has the app's packages; an installation's is no app
_PATH_KEYS = ("data-dir", "output-dir", "state-dir", "resume", "initial-model", "partition-file")
_OR_IN_DATA_DIR = ("initial-model", "partition-file")
_NO_PATHS = {"resume": "auto", "initial-model": "imagenet"}


def is_app(project: Path) -> bool:
    """Return whether a folder has this app's pyproject.toml, not that of another Flower app."""
    file = project / "pyproject.toml"
    text = file.read_bytes().decode(errors="replace") if file.is_file() else ""
    return "[tool.flwr.app.config]" in text and SERVER_APP in text


def app_folder(project: Path) -> Path | None:
    """Return the app's folder: `project`, or in a working directory without it the checkout.

    None if there is no checkout, but an installation.
    """
    if project != Path(".") or is_app(project):
        return project
    return _CHECKOUT if is_app(_CHECKOUT) else None


def default_config(project: Path) -> dict[str, Any]:
    """Read `[tool.flwr.app.config]` of a project; raises UserError if there is none."""
    return _app_table(project, "config")


def _app_table(project: Path, name: str) -> dict[str, Any]:
    """Read `[tool.flwr.app.NAME]` of a project; raises UserError if there is none."""
    file = project / "pyproject.toml"
    try:
        return dict(tomllib.loads(file.read_text(encoding="utf-8"))["tool"]["flwr"]["app"][name])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file.absolute()} is not TOML: {error}") from None
    except (OSError, KeyError):
        raise UserError(
            f"{file.absolute()} has no [tool.flwr.app.{name}]: run this in the fedapp folder, "
            "or name it with --app"
        ) from None


def merge(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unchecked configuration of a run; its paths become absolute.

    The path of an initial model or a partition file becomes absolute only if the file exists
    relative to the current folder, because it may also be relative to the data folder. An empty
    output-dir becomes the default one: left empty, it would be the folder in which the run
    executes, which is removed.
    """
    defaults = default_config(project)
    values = {**defaults, **overrides}
    if values.get("output-dir") == "":
        values["output-dir"] = defaults.get("output-dir") or "runs"
    for key in _PATH_KEYS:
        path = values.get(key)
        if isinstance(path, str) and path and path != _NO_PATHS.get(key):
            full_path = absolute(path, key)
            if key not in _OR_IN_DATA_DIR or full_path.exists():
                values[key] = str(full_path)
    return values


def components(project: Path) -> dict[str, str]:
    """Return the project's "serverapp" and "clientapp", each as module:name.

    Raises:
        UserError: pyproject.toml does not name both.
    """
    named = _app_table(project, "components")
    try:
        return {key: str(named[key]) for key in ("serverapp", "clientapp")}
    except KeyError as missing:
        raise UserError(
            f"[tool.flwr.app.components] of {project.absolute()} names no {missing}"
        ) from None
