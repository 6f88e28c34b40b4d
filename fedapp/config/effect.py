"""Which configuration keys have an effect, given the method, the data and the partition."""

from collections.abc import Callable, Iterable

from fedapp.config.run_config import RunConfig
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
    "partition-file": _with("partition", "file"),
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


def without_effect(keys: Iterable[str], config: RunConfig) -> str:
    """Return a sentence that names those of the keys that change nothing; empty: all do."""
    row = find_method(config.method)
    idle = [key for key in keys if not applies(key, config, row)]
    if not idle:
        return ""
    verb = "has" if len(idle) == 1 else "have"
    return f"{', '.join(idle)} {verb} no effect with this method, data and partition"
