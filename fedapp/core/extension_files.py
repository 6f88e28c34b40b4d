"""Python files of a user's own that add methods, losses, data sets or backbones to a run.

A file needs no package: it puts its rows into the tables when it is imported. The variable
FEDAPP_EXTENSIONS names the files, because every process of a run must import them, also those that
Flower or Ray starts. The option --extension of the `fedapp` command sets it.
"""

import hashlib
import logging
import os
import re
import sys
import traceback
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from fedapp.core.errors import UserError
from fedapp.core.paths import absolute, name_and_hash

log = logging.getLogger(__name__)
VARIABLE, OPTION = "FEDAPP_EXTENSIONS", "--extension"
SOURCE = f"{OPTION} ({VARIABLE})"  # in errors: a user may have used either
_PREFIX = "fedapp_extension_"  # of the modules' names: a file may be called torch.py
_MIXED = re.compile(
    r"implemented for NumPy arrays|'numpy\.ndarray' and '(Tensor|Parameter)'|Can't call numpy\(\)"
)


@dataclass(frozen=True)
class ExtensionFile:
    """A file as it was imported; later changes on the disk do not matter to this process."""

    path: Path
    content: bytes

    def __str__(self) -> str:
        """Return its name and a hash of its content, which server and nodes compare."""
        return name_and_hash(self.path, self.content)


def add_files(paths: Iterable[str | Path]) -> None:
    """Let this process and those that it starts import these files.

    Raises UserError if one does not exist.
    """
    _set([*_named(), *(_existing(path, OPTION) for path in paths)])


def read_files() -> list[ExtensionFile]:
    """Read the files that FEDAPP_EXTENSIONS names, in their order.

    The variable gets absolute paths, for processes that start in other folders. Raises UserError if
    a file does not exist or cannot be read.
    """
    paths = _named()
    _set(paths)
    try:
        return [ExtensionFile(path, path.read_bytes()) for path in paths]
    except OSError as error:
        raise UserError(f"{SOURCE}: cannot read {error.filename}: {error.strerror}") from None


def import_file(file: ExtensionFile) -> None:
    """Execute a file as a module of its own; it may import files of its own folder.

    Raises UserError, with the line of the file, if it cannot be imported.
    """
    name = f"{_PREFIX}{hashlib.sha256(bytes(file.path)).hexdigest()[:8]}_{file.path.stem}"
    module = types.ModuleType(name)
    module.__file__ = str(file.path)
    sys.modules[name] = module  # dataclasses look their module up
    if (folder := str(file.path.parent)) not in sys.path:
        sys.path.append(folder)
    try:
        exec(compile(file.content, file.path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{SOURCE}: {_reason(file.path, error)}") from None


def own_mistake(error: BaseException) -> str | None:
    """Return the file and line where code of an extension file failed; None if none took part."""
    for text in _texts():
        if line := _line(text, error):
            return f"{text} line {line}: {type(error).__name__}: {error}{_hint(error)}"
    return None


def _hint(error: BaseException) -> str:
    """Return what helps with an error that mixes arrays and tensors; "" for others."""
    if _MIXED.search(str(error)) is None:
        return ""
    return (
        " (arrays that are received, stored or sent are NumPy's, those of the model are tensors: "
        "torch.from_numpy(array), tensor.detach().cpu().numpy())"
    )


@contextmanager
def own_mistakes_explained() -> Iterator[None]:
    """Turn an error of code of an extension file into a UserError with its file and line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if mistake := own_mistake(error):
            log.debug("in an extension file", exc_info=True)
            raise UserError(mistake) from None
        raise


def _line(path: str, error: BaseException) -> int | None:
    """Return the line of a file that failed, or of the function that was called wrongly."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if frame.filename == path]
    return own[-1] if own else _called(path, error)


def _called(path: str, error: BaseException) -> int | None:
    """Return the line of the function of a file whose arguments a TypeError is about."""
    named = re.match(r"([\w.]+)\(\) (takes|missing|got) ", str(error))
    if not isinstance(error, TypeError) or named is None:
        return None
    for module in [m for m in list(sys.modules.values()) if getattr(m, "__file__", "") == path]:
        with suppress(AttributeError):
            code = attrgetter(named[1])(module).__code__
            return code.co_firstlineno if code.co_filename == path else None
    return None


def _reason(path: Path, error: BaseException) -> str:
    line = _line(str(path), error) or getattr(error, "lineno", None)
    where = f"line {line}: " if line else ""
    return f"{path} cannot be imported: {where}{type(error).__name__}: {error}"


def _named() -> list[Path]:
    return [_existing(text, VARIABLE) for text in _texts()]


def _texts() -> list[str]:
    return [text for text in os.environ.get(VARIABLE, "").split(os.pathsep) if text.strip()]


def _set(paths: Iterable[Path]) -> None:
    if text := os.pathsep.join(dict.fromkeys(map(str, paths))):
        os.environ[VARIABLE] = text


def _existing(path: str | Path, source: str) -> Path:
    found = absolute(path, source)
    if not found.is_file():
        raise UserError(f"{source}: there is no file {found}")
    if found.suffix != ".py":
        raise UserError(f"{source}: {found} is no Python file: its name must end in .py")
    if os.pathsep in str(found):
        raise UserError(f"{source}: {found} has a '{os.pathsep}' in its path; rename it")
    return found
