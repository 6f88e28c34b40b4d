"""Reader of `-c` arguments: presets, TOML files and key=value pairs. The last value counts."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from pathlib import Path
from typing import Any

from fedapp.config.presets import preset_path
from fedapp.core.errors import UserError
from fedapp.core.paths import expanded

# Where a value of a run's config.toml comes from, as a comment; "fixed": the method determines it.
AUTO, DEFAULT, FIXED = "auto", "default", "fixed"
_MARK = re.compile(rf"([\w-]+) = .*  # ({AUTO}|{DEFAULT}|{FIXED})")
_PAIR = re.compile(r"""([^\s=]+)\s*=\s*('[^']*'|"[^"]*"|\S+)""")
_WORD = re.compile(r"[\w.+/~:-]+")


def read_overrides(texts: Sequence[str], more: bool = False) -> dict[str, Any]:
    """Read `-c` arguments.

    Each is the name of a preset, a TOML file, or a string "key=value key2='text'". This is the
    syntax of `flwr run`. Flower's own reader is not used: its import takes most of a second, and it
    skips text that it does not understand.

    A run's config.toml alone repeats that run. If another argument follows it, or `more` announces
    further overrides, the values that "auto" chose become "auto" again and those that the method
    fixed are left out: another seed draws another partition, another method has its own learning
    rate.

    Raises:
        UserError: an argument cannot be read, or a value is a table, a date or a time.
    """
    overrides: dict[str, Any] = {}
    for position, text in enumerate(texts, 1):
        try:
            if is_file(text):
                changed = more or position < len(texts)
                read = _read_toml(Path(preset_path(text) or text), changed)
            else:
                read = _read_pairs(text)
        except OSError as error:
            raise UserError(f"-c {text}: the file cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UserError(
                f"-c {text!r} is not TOML key=value pairs or a TOML file: {error}"
            ) from None
        _check_types(text, read)
        overrides |= read
    return with_extension_keys(overrides)


def with_extension_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the pairs of its key `extension-keys` as keys of their own.

    Flower refuses keys that pyproject.toml does not list, so a user passes them in this one text.
    """
    text = values.get("extension-keys", "")
    if not isinstance(text, str):
        return dict(values)  # which the checks of types refuse
    others = {key: value for key, value in values.items() if key != "extension-keys"}
    try:
        pairs = _read_pairs(text)
    except ValueError as error:
        raise UserError(
            f"run-config key 'extension-keys' is {text!r}, which is not key=value pairs: {error}"
        ) from None
    _check_types(text, pairs)
    return {**others, **pairs}


def _check_types(text: str, values: Mapping[str, Any]) -> None:
    """Raise UserError for values of TOML types that no key takes."""
    for key, value in values.items():
        if isinstance(value, dict):
            raise UserError(
                f"-c {text!r}: '{key}' is a TOML table, but all keys stand outside of tables, "
                "without dots"
            )
        if isinstance(value, date | time):
            raise UserError(
                f"-c {key}={value} is a date or a time; a name needs quotes: {key}='{value}'"
            )


def is_file(text: str) -> bool:
    """Return whether a `-c` argument is a preset or TOML file (True) or key=value pairs (False).

    Raises:
        UserError: it is neither.
    """
    if preset_path(text) or text.endswith(".toml"):
        return True
    if "=" not in text:
        raise UserError(
            f"-c {text!r} is neither a preset (see `fedapp presets`) nor a .toml file nor "
            "key=value pairs"
        )
    return False


def read_origins(text: str) -> dict[str, str]:
    """Return the marks of a run's config.toml by key; a key without one is the user's choice."""
    marks = map(_MARK.fullmatch, text.splitlines())
    return {mark[1]: mark[2] for mark in marks if mark}


def as_toml(config: Mapping[str, Any], marks: Mapping[str, str]) -> bytes:
    """Return a configuration as a run's config.toml, with the keys' marks as comments."""
    import tomli_w

    lines = []
    for name, value in config.items():
        key = name.replace("_", "-")
        line = tomli_w.dumps({key: value}).rstrip("\n")
        lines.append(f"{line}  # {marks[key]}\n" if key in marks else f"{line}\n")
    return "".join(lines).encode()


def _read_toml(file: Path, changed: bool) -> dict[str, Any]:
    text = expanded(file, "-c").read_text(encoding="utf-8")
    marks = read_origins(text) if changed else {}
    kept = {k: value for k, value in tomllib.loads(text).items() if marks.get(k) != FIXED}
    chosen = [key for key, origin in marks.items() if origin == AUTO]
    return {**kept, **dict.fromkeys(chosen, AUTO)}


def _read_pairs(text: str) -> dict[str, Any]:
    """Read "key=value key2='text'"; raises ValueError for text that is no such pair."""
    if rest := _PAIR.sub("", text).strip():
        raise ValueError(f"{rest!r} is not a key=value pair")
    pairs = _PAIR.findall(text)
    for key, value in pairs:
        _check_value(key, value)
    return tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))


def _check_value(key: str, value: str) -> None:
    """Raise ValueError for a value that is not TOML; it states the right spelling of simple ones.

    A shell removes the quotes of method='fedavg', so this is the most frequent mistake.
    """
    try:
        tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError as error:
        if not _WORD.fullmatch(value):
            raise
        spelled = value.lower() if value.lower() in ("true", "false") else _number(value)
        if spelled:
            raise ValueError(f"write {key}={spelled}") from error
        raise ValueError(
            f"text needs quotes, inside those of the shell: -c \"{key}='{value}'\""
        ) from error


def _number(text: str) -> str:
    """Return a number such as .5 or 007 as TOML writes it; "" for other text."""
    for kind in (int, float):
        with suppress(ValueError):
            return repr(kind(text))
    return ""
