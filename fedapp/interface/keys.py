"""Keyword arguments in Python as keys and values of a configuration."""

import os
from collections.abc import Mapping
from typing import Any

from fedapp.config.key_groups import kebab
from fedapp.core.files import to_json_types


def by_key(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of keyword arguments, such as `num_rounds`, by key: `num-rounds`."""
    return {kebab(name): scalar(value) for name, value in keywords.items()}


def scalar(value: Any) -> Any:
    """Return a path as text and NumPy numbers as Python numbers, the types of configurations."""
    return os.fspath(value) if isinstance(value, os.PathLike) else to_json_types(value)
