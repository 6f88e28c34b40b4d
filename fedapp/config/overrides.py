"""What `-c` gives: presets, TOML files and pairs of key and value, later ones winning."""

import re
import tomllib
from collections.abc import Sequence
from datetime import date, time
from pathlib import Path
from typing import Any

from fedapp.config.presets import preset_path
from fedapp.core.errors import UserError
from fedapp.core.paths import expanded

CHOSEN = "  # auto"  # ends the lines of a run's config.toml whose values "auto" has chosen
_PAIR = re.compile(r"""([^\s=]+)\s*=\s*('[^']*'|"[^"]*"|\S+)""")


def read_overrides(texts: Sequence[str], more: bool = False) -> dict[str, Any]:
    """Read `-c` arguments.

    Each is the name of a preset, a TOML file, or a string "key=value key2='text'". That is the
    syntax of `flwr run`, whose own reader takes most of a second to import, and skips what it does
    not understand.

    A run's config.toml alone repeats that run. Where something follows it (or `more` will), what
    "auto" had chosen in it is chosen again: another seed draws another partition, another method
    has its own learning rate.
    """
    overrides: dict[str, Any] = {}
    for place, text in enumerate(texts):
        try:
            if is_file(text):
                changed = more or place + 1 < len(texts)
                overrides |= _read_toml(Path(preset_path(text) or text), changed)
            else:
                overrides |= _read_pairs(text)
        except OSError as error:
            raise UserError(f"preset {text} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UserError(
                f"-c {text!r} is not TOML key=value pairs or a TOML file: {error}"
            ) from None
    for key, value in overrides.items():
        if isinstance(value, date | time):  # which no key takes
            raise UserError(
                f"-c {key}={value} is a date or a time; a name needs quotes: {key}='{value}'"
            )
    return overrides


def is_file(text: str) -> bool:
    """Return whether a `-c` argument is a preset or a TOML file; raises UserError for neither."""
    if preset_path(text) or text.endswith(".toml"):
        return True
    if "=" not in text:
        raise UserError(
            f"-c {text!r} is neither a preset (see `fedapp presets`) nor a .toml file nor "
            "key=value pairs"
        )
    return False


def _read_toml(file: Path, changed: bool) -> dict[str, Any]:
    text = expanded(file, "-c").read_text(encoding="utf-8")
    lines = text.splitlines() if changed else []
    chosen = (line.partition(" =")[0] for line in lines if line.endswith(CHOSEN))
    return {**tomllib.loads(text), **dict.fromkeys(chosen, "auto")}


def _read_pairs(text: str) -> dict[str, Any]:
    """Read "key=value key2='text'"; raises ValueError for what is no such pair."""
    if rest := _PAIR.sub("", text).strip():
        raise ValueError(f"{rest!r} is not a key=value pair")
    return tomllib.loads("\n".join(f"{key} = {value}" for key, value in _PAIR.findall(text)))
