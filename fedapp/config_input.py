"""Reading configuration values as users write them, and saying what is wrong with one of them."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError


def kebab(name: str) -> str:
    """Return a field's name as a run-config key."""
    return name.replace("_", "-")


def whole_floats(cls: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """Let a whole number stand for a float (lr=1), but not a float for a whole number."""
    by_alias = {kebab(name): field for name, field in cls.model_fields.items()}
    floats = {key for key, field in by_alias.items() if "float" in str(field.annotation)}
    return {
        key: float(value) if key in floats and type(value) is int else value
        for key, value in values.items()
    }


def sentence(cls: type[BaseModel], error: ValidationError) -> str:
    """Say the first thing that is wrong with a configuration in one sentence."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    value = first["input"]
    message = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if (most := first.get("ctx", {}).get("le")) is not None:
        message = f"less than or equal to {most:g}"  # not a number of 30 digits
    auto = " or 'auto'" if any("auto" in str(e.get("ctx", "")) for e in error.errors()) else ""
    help_text = cls.model_fields[key.replace("-", "_")].description
    return f"run-config key '{key}' is {value!r} but must be {message}{auto} ({help_text})"
