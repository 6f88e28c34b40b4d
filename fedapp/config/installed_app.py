"""The app of the installed packages, where no folder has its pyproject.toml.

Flower and the engines want a folder; an installation from a wheel has none.
"""

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from fedapp.config.project import PACKAGES, SERVER_APP, app_folder
from fedapp.config.run_config import RunConfig

_ROOT = Path(__file__).parents[2]  # the folder of the app's packages
_COMPONENTS = {"serverapp": SERVER_APP, "clientapp": "fedapp.client_app:app"}


def find_app(project: Path = Path(".")) -> Path:
    """Return the app's folder: as `app_folder`, or one with the installed packages."""
    return app_folder(project) or _installed_app()


@cache
def _installed_app() -> Path:
    """Return a folder with the app for this process, which is removed at its end."""
    folder = TemporaryDirectory(prefix="fedapp-")
    atexit.register(folder.cleanup)
    _write_app(Path(folder.name))
    return Path(folder.name)


def _write_app(folder: Path) -> None:
    """Make an empty folder the app of the installed packages, with the default of every key."""
    for package in PACKAGES:
        (folder / package).symlink_to(_ROOT / package)
    app = {"config": RunConfig.defaults(), "components": _COMPONENTS}
    text = tomli_w.dumps({"tool": {"flwr": {"app": app}}})
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
