"""Python files of a user's own that add methods, losses, data sets or backbones to a run.

A file needs no package: it puts its rows into the tables when it is imported. The variable
FEDAPP_EXTENSIONS names the files, because every process of a run must import them, also those that
Flower or Ray starts. The option --extension of the `fedapp` command sets it.
"""

import hashlib
import os
import sys
import traceback
import types
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path

from fedapp.core.errors import UserError

VARIABLE = "FEDAPP_EXTENSIONS"
_PREFIX = "fedapp_extension_"  # of the modules' names: a file may be called torch.py


def add_files(paths: Iterable[str | Path]) -> None:
    """Let this process and those that it starts import these files.

    Raises UserError if one does not exist.
    """
    named = [*_named(), *(_existing(Path(path), "--extension") for path in paths)]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(map(str, named)))


def import_files() -> list[Path]:
    """Import the files of FEDAPP_EXTENSIONS, in their order, and return their paths.

    Raises:
        UserError: a file does not exist or cannot be imported; the message has its line.
    """
    files = [_existing(path, VARIABLE) for path in _named()]
    for path in files:
        _import(path)
    return files


def digests(files: Iterable[Path]) -> str:
    """Return "NAME HASH" of each file, so that server and nodes can compare their contents."""
    return ", ".join(f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()[:16]}" for f in files)


def _named() -> list[Path]:
    return [Path(text) for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]


def _existing(path: Path, source: str) -> Path:
    path = path.expanduser().absolute()
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"{source}: {path} is no Python file; name an existing file, as my_loss.py")
    return path


def _import(path: Path) -> None:
    name = _PREFIX + path.stem
    loader = SourceFileLoader(name, str(path))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame.lineno for frame in frames if frame.filename == str(path)]
        line = own[-1] if own else getattr(error, "lineno", None)
        raise UserError(
            f"{VARIABLE}: {path} cannot be imported: line {line}: {type(error).__name__}: {error}"
        ) from None
