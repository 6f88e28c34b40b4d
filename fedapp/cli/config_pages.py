"""What `fedapp config` prints: the keys that apply, by group, with the origin of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedapp.config.effect import applies
from fedapp.config.key_groups import field_name, kebab
from fedapp.config.overrides import is_file, read_overrides
from fedapp.config.project import default_config
from fedapp.config.resolve import layers, parse_config, parse_unresolved, unknown_key
from fedapp.config.run_config import RunConfig, group_of
from fedapp.config.run_keys import KEY_GROUPS
from fedapp.methods.table import METHODS, find_method


def rows(project: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per key: its group, value, origin, meaning, and whether it applies."""
    given = {**default_config(project), **read_overrides(texts)}
    config = parse_config(given)
    row = find_method(config.method)
    origins = _origins(given, texts)
    fields = {kebab(name): field for name, field in RunConfig.model_fields.items()}
    return [
        {
            "key": key,
            "value": value,
            "from": origins[key],
            "group": group_of(key),
            "applies": applies(key, config, row),
            "meaning": fields[key].description,
        }
        for key, value in config.flat().items()
    ]


def by_group(listed: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return key, value and origin of rows by group, in the groups' order."""
    return {
        group: [
            {n: row[n] for n in ("key", "value", "from")} for row in listed if row["group"] == group
        ]
        for group in KEY_GROUPS
    }


def page(key: str, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return everything about one key; raises UserError with the nearest key."""
    found = {row["key"]: row for row in listed}
    if key not in found:
        raise unknown_key(key, found)
    row, field = found[key], RunConfig.model_fields[field_name(key)]
    methods = [name for name, each in METHODS.items() if key in each.keys]
    facts = {
        "meaning": row["meaning"],
        "values": allowed(key),
        "default": field.default,
        "now": f"{row['value']!r} ({row['from']})",
        "group": row["group"],
        "applies": "yes" if row["applies"] else "no, with this method, data and partition",
        "methods": " ".join(methods),
        "example": f'fedapp run -c "{key}={row["value"]!r}"'.replace("True", "true").replace(
            "False", "false"
        ),
    }
    return [{"": name, key: value} for name, value in facts.items() if value != ""]


def allowed(key: str) -> str:
    """Return the values that a key accepts, from its type."""
    schema = _schema()[key]
    return " or ".join(_allowed(part) for part in schema.get("anyOf", [schema]))


@cache
def _schema() -> dict[str, Any]:
    """Return the JSON schema of every key."""
    return dict(RunConfig.model_json_schema(by_alias=True)["properties"])


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _allowed(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = {"boolean": "true or false", "string": "text", "number": "a number"}
    limits = [f"{sign} {schema[name]:g}" for name, sign in _LIMITS.items() if name in schema]
    return " ".join([kind.get(schema["type"], "a whole number"), *limits])


def _origins(given: Mapping[str, Any], texts: Sequence[str]) -> dict[str, str]:
    """Return where each value comes from: the default, a preset or -c, the method, or "auto"."""
    unresolved = parse_unresolved(given)
    found = dict.fromkeys(unresolved.flat(), "default")
    for text in texts:
        origin = text if is_file(text) else "-c"
        found |= dict.fromkeys(read_overrides([text]), origin)
    for layer in layers(unresolved):
        source = layer.source if layer.fixed else f"auto: {layer.source}"
        found |= {kebab(name): source for name in layer.taken(unresolved)}
    return found
