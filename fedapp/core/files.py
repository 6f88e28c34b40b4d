"""Write a run's files: atomically, in valid formats, and equal for equal input.

The formats (JSON, safetensors) alone do not prevent three faults: an incomplete file after the
process dies, NaN that no other program can read, and bytes that differ between two equal runs. The
functions of this module prevent them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from fedapp.core.errors import UserError

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = Union[np.ndarray, "torch.Tensor"]
log = logging.getLogger(__name__)


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write `content` to `path` so that readers see the old or the new file, also after a crash.

    The file is created with `mode`, minus the user's umask.
    """
    # A suffix with the process id instead of tempfile, which would ignore the user's umask.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a process that was killed
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_named(path: Path, content: bytes, kind: str) -> None:
    """Write a file that the user has named, and make its folder if needed; `kind` is "a PNG file".

    Raises:
        UserError: the file cannot be written.
    """
    if not path.name or path.is_dir():
        raise UserError(f"'{path}' cannot be written: it is a folder; name {kind}")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise UserError(f"{path} cannot be written: {above} is not a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:  # without the name of the temporary file
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def is_temporary(path: Path) -> bool:
    """Return whether a path is that of an incomplete file of `write_atomically`."""
    return re.fullmatch(r"\..+\.\d+\.tmp", path.name) is not None


def try_write(what: str, write: Callable[[], object]) -> bool:
    """Call `write` and return True; log an OSError, such as a full disk, and return False."""
    try:
        write()
    except OSError as error:
        log.warning("%s not written: %s", what, error)
        return False
    return True


def safetensors_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Serialise arrays or tensors, with text metadata, to the safetensors format."""
    import torch
    from safetensors.torch import save

    copies = {
        name: value.detach().cpu().contiguous().clone()
        if isinstance(value, torch.Tensor)
        else torch.from_numpy(np.array(value, order="C"))
        for name, value in tensors.items()
    }
    return _with_metadata(save(copies), metadata)


def _with_metadata(content: bytes, metadata: Mapping[str, str]) -> bytes:
    """Add sorted metadata to a safetensors file: the library's order differs between processes.

    The format is an 8-byte little-endian header length, the JSON header padded with spaces to a
    multiple of 8, then the tensors.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(content[8:end])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def to_json_types(value: Any) -> Any:
    """Convert NumPy and PyTorch values to JSON types, and non-finite numbers to None."""
    if isinstance(value, Mapping):
        return {str(key): to_json_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_types(item) for item in value]
    if hasattr(value, "tolist"):
        return to_json_types(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Mapping[str, Any], indent: int | None = None) -> str:
    """Write one JSON object, ended by a newline; NaN and infinities become null."""
    return json.dumps(to_json_types(value), indent=indent, allow_nan=False) + "\n"


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Parse one JSON object; return None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
