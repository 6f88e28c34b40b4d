"""What `fedapp config` prints: the keys that apply, by group, with the origin of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedapp.config.key_groups import kebab
from fedapp.config.overrides import is_file, read_overrides
from fedapp.config.project import default_config
from fedapp.config.resolve import auto_layers, parse_config, parse_unresolved
from fedapp.config.run_config import RunConfig, group_of
from fedapp.config.run_keys import GROUPS
from fedapp.core.errors import unknown
from fedapp.methods.fine_tuned import FINE_TUNING_KEYS
from fedapp.methods.heterogeneous_keys import SHARED
from fedapp.methods.row import Method
from fedapp.methods.table import METHODS, find_method
from fedapp.models.backbones import BACKBONES

Test = Callable[[RunConfig, Method], bool]


def _with(key: str, *values: object) -> Test:
    """Return a test whether a configuration has one of these values of a key."""
    return lambda config, _: getattr(config, key) in values


def _one_model(config: RunConfig, row: Method) -> bool:
    return row.personal is None


def _weighed(key: str) -> Test:
    """Return a test whether a method's objective has a weight or temperature of this name."""

    def test(config: RunConfig, row: Method) -> bool:
        added = config.regulariser not in ("none", row.loss.regulariser)
        return key in row.defaults or (key == "beta" and added) or (key == "tau" and added)

    return test


def _batch_norm(config: RunConfig, row: Method) -> bool:
    return row.personal is None and BACKBONES[config.model].has_batch_norm


# Keys that apply to some configurations only; all others apply always.
APPLIES: dict[str, Test] = {
    "extension-keys": lambda config, _: bool(config.extension_keys),
    "beta": _weighed("beta"),
    "mu": _weighed("mu"),
    "tau": _weighed("tau"),
    "class-list": _with("dataset", "imagenet100"),
    "decode-threads": _with("dataset", "imagenet100"),
    "classes": _with("partition", "own"),
    "shards": _with("partition", "shards"),
    "alpha": _with("partition", "lda", "dirichlet"),
    "lda-cap": _with("partition", "lda"),
    "classes-per-client": _with("partition", "pathological"),
    "unbalanced-sigma": _with("partition", "unbalanced"),
    "pool-data": _with("pool_data", True),
    "stochastic-from": lambda config, _: config.stochastic_every > 0,
    "model": _one_model,
    "bn": _batch_norm,
    "bottleneck": _one_model,
    "bottleneck-layers": lambda config, _: config.bottleneck > 0,
    "initial-model": _one_model,
    "test-batch-size": _batch_norm,
    "analysis-every": lambda config, _: bool(config.analyses),
    "analysis-clients": lambda config, _: bool(config.analyses),
    "checkpoint-keep": lambda config, _: config.checkpoint_every > 0,
    "robust-malicious": _with("aggregation", "krum", "multi-krum"),
    "robust-trim": _with("aggregation", "trimmed-mean"),
    **{key: lambda config, _: config.dp_clip > 0 for key in ("dp-noise", "dp-epsilon", "dp-delta")},
    "finetune-epochs": lambda config, row: row.fine_tuned,
    **{
        key: lambda config, _: config.finetune_epochs > 0
        for key in FINE_TUNING_KEYS
        if key != "finetune-epochs"
    },
    **{key: lambda config, row: row.personal is not None for key in SHARED},
}


def rows(project: Path, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row per key: its group, value, origin, meaning, and whether it applies."""
    given = {**default_config(project), **read_overrides(texts)}
    config = parse_config(given)
    row = find_method(config.method)
    origins = _origins(given, config, row, texts)
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


def applies(key: str, config: RunConfig, row: Method) -> bool:
    """Return whether a key changes anything in a resolved configuration."""
    if key in APPLIES:
        return APPLIES[key](config, row)
    owners = [each for each in METHODS.values() if key in each.keys]
    used = {*row.client.options.values(), *row.server.options.values(), *row.keys}
    used |= {*row.head.options.values(), row.head.scale_key}
    if row.personal is not None:
        used.add(row.personal.style_key)
    return not owners or key in used


def by_group(listed: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return key, value and origin of rows by group, in the groups' order."""
    return {
        group: [
            {n: row[n] for n in ("key", "value", "from")} for row in listed if row["group"] == group
        ]
        for group in GROUPS
    }


def page(key: str, listed: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return everything about one key; raises UserError with the nearest names."""
    found = {row["key"]: row for row in listed}
    if key not in found:
        raise unknown("run-config key", key, found)
    row, field = found[key], RunConfig.model_fields[key.replace("-", "_")]
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


def _origins(
    given: Mapping[str, Any], config: RunConfig, row: Method, texts: Sequence[str]
) -> dict[str, str]:
    """Return where each value comes from: the default, a preset or -c, the method, or "auto"."""
    found = dict.fromkeys(config.flat(), "default")
    for text in texts:
        origin = text if is_file(text) else "-c"
        found |= dict.fromkeys(read_overrides([text]), origin)
    for source, layer in auto_layers(parse_unresolved(given), row):
        for name in layer:
            if given.get(kebab(name), RunConfig.model_fields[name].default) == "auto":
                found[kebab(name)] = f"auto: {source}"
    for key in config.chosen(given) - {k for k, v in found.items() if v.startswith("auto")}:
        found[key] = "auto"
    return {**found, **{kebab(name): f"fixed by {config.method}" for name in row.fixed}}
