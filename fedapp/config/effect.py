"""Which configuration keys have an effect, given the method, the data and the partition."""

from collections.abc import Callable, Iterable

from clients.attacks import LABELS
from fedapp.config.auto import fixes_images, gives_images, pools_data
from fedapp.config.key_groups import kebab
from fedapp.config.measures import measures_of_models
from fedapp.config.run_config import RunConfig
from fedapp.data.datasets import find_dataset
from fedapp.methods.fine_tuned import ALTERNATING, FINE_TUNING_KEYS
from fedapp.methods.heterogeneous_keys import SHARED
from fedapp.methods.heterogeneous_parts import feddor_without_oi
from fedapp.methods.row import GLOBAL, Method
from fedapp.methods.table import METHODS, find_method, kept_by_clients
from fedapp.models.backbones import BACKBONES
from fedapp.models.heterogeneous_heads import STYLES
from fedapp.models.initial import IMAGENET
from strategies.feddor import FedDOR

Test = Callable[[RunConfig, Method], bool]


def _with(key: str, *values: object) -> Test:
    """Return a test whether a configuration has one of these values of a key."""
    return lambda config, _: getattr(config, key) in values


def _one_model(config: RunConfig, row: Method) -> bool:
    return row.heterogeneous is None


def _own_keys(row: Method) -> set[str]:
    """Return the keys that a method's row has or names."""
    return {*row.keys, *row.named_keys()}


def _weighs(key: str) -> Test:
    """Return a test whether a method's row names a key, or the key weighs a part of its loss."""

    def test(config: RunConfig, row: Method) -> bool:
        zero, one = (row.objective({**config.flat(), key: weight}) for weight in (0.0, 1.0))
        return key in _own_keys(row) or zero != one

    return test


def _beta(config: RunConfig, row: Method) -> bool:
    blends = config.finetune_epochs > 0 and config.finetune_loss in ("base+fd", "dr+")
    return blends or _weighs("beta")(config, row)


# A regulariser of the user's own may have a temperature.
WITHOUT_TEMPERATURE = ("none", "prox", "ntd-mse", "ld", "fd", "norm", "decorr")


def _tau(config: RunConfig, row: Method) -> bool:
    return "tau" in _own_keys(row) or config.regulariser not in WITHOUT_TEMPERATURE


def _reads_files(config: RunConfig, row: Method) -> bool:
    return not find_dataset(config.dataset).bundled


def _data_folder(config: RunConfig, row: Method) -> bool:
    """Return whether a run may read a file of its data folder."""
    return _reads_files(config, row) or bool(config.partition_file or config.initial_model)


def _downloads(config: RunConfig, row: Method) -> bool:
    return _reads_files(config, row) or config.initial_model == IMAGENET


def _chooses_images(config: RunConfig, row: Method) -> bool:
    return not fixes_images(config.partition) and not config.pool_data


def _simulates_features(config: RunConfig, row: Method) -> bool:
    streams = find_dataset(config.dataset).streams
    return config.num_clients > 1 and not streams and not gives_images(config.partition)


def _analyses(config: RunConfig, row: Method) -> bool:
    """Return whether a word names a measure of models, or class accuracies are recorded."""
    return row.has_global_model or bool(measures_of_models(config.analyses))


def _weights(config: RunConfig, row: Method) -> bool:
    """Return whether a mean of models depends on the clients' numbers of examples."""
    averages = row.exchange.sends != "nothing"
    by_size = averages and config.aggregation in ("mean", "multi-krum")
    return by_size or "local-training" in config.analyses.split()


def _batch_norm(config: RunConfig, row: Method) -> bool:
    return row.heterogeneous is None and BACKBONES[config.model].has_batch_norm


def _own_models(config: RunConfig, row: Method) -> bool:
    return row.heterogeneous is not None


def _named(key: str) -> Test:
    """Return a test whether a method's row names a key that methods share."""
    return lambda config, row: key in _own_keys(row)


def _read_by_client(key: str) -> Test:
    """Return a test whether a method's client takes a key of its optimiser from the run."""
    return lambda config, row: key not in row.client.kind.unread_settings


def _keeps_states(config: RunConfig, row: Method) -> bool:
    return bool(kept_by_clients(config.flat()))


def _evaluates_received(config: RunConfig, row: Method) -> bool:
    """Return whether clients are tested with a part that they may take from the server."""
    sends = row.exchange.sends == "head" or "evaluate_when" in row.server.options
    return "eval-when" in _own_keys(row) and sends


def _orthogonal(config: RunConfig, row: Method) -> bool:
    return row.heterogeneous is not None and row.heterogeneous.orthogonal


def _scaled_heads(config: RunConfig, row: Method) -> bool:
    return (
        row.heterogeneous is not None
        and STYLES[row.heterogeneous.chosen_style(config.flat())].learn_scale
    )


def _server_trains(config: RunConfig, row: Method) -> bool:
    """Return whether the server trains a module by these keys."""
    return row.server.kind.trains


# Keys that apply to some configurations only; all others apply always.
APPLIES: dict[str, Test] = {
    "beta": _beta,
    "mu": _weighs("mu"),
    "tau": _tau,
    "ntd-tau-squared": _with("regulariser", "ntd"),
    "kd-ntd-lambda": _with("regulariser", "kd-ntd"),
    "feddecorr-authors": _with("regulariser", "decorr"),
    "weights": _weights,
    "upload-bits": lambda _, row: row.averages_models,
    "data-dir": _data_folder,
    "download": _downloads,
    "class-list": lambda config, _: find_dataset(config.dataset).lists_classes,
    "image-size": lambda config, _: find_dataset(config.dataset).takes_photos,
    "test-share": lambda config, _: (
        find_dataset(config.dataset).takes_photos and not gives_images(config.partition)
    ),
    "decode-threads": lambda config, _: find_dataset(config.dataset).streams,
    "classes": lambda config, _: gives_images(config.partition),
    "shards": _with("partition", "shards"),
    "partition-file": _with("partition", "file"),
    "alpha": _with("partition", "lda", "dirichlet"),
    "lda-cap": _with("partition", "lda"),
    "classes-per-client": _with("partition", "pathological"),
    "unbalanced-sigma": _with("partition", "unbalanced"),
    "pool-data": lambda config, _: bool(config.pool_data) or pools_data(config.partition),
    **dict.fromkeys(("imbalance-factor", "validation-share"), _chooses_images),
    "feature-skew": _simulates_features,
    "feature-skew-level": _with("feature_skew", "noise", "brightness"),
    "stochastic-from": lambda config, _: config.stochastic_every > 0,
    "model": _one_model,
    "bn": _batch_norm,
    "bottleneck": _one_model,
    "bottleneck-layers": lambda config, _: config.bottleneck > 0,
    "initial-model": _one_model,
    "test-batch-size": lambda config, row: config.bn == "batch" and _batch_norm(config, row),
    "analyses": _analyses,
    "analysis-every": lambda config, _: bool(config.analyses),
    "analysis-clients": lambda config, _: bool(config.analyses),
    "keep-best": lambda _, row: row.accuracy == GLOBAL,
    "checkpoint-keep": lambda config, _: config.checkpoint_every > 0,
    "robust-malicious": _with("aggregation", "krum", "multi-krum"),
    "straggler-share": lambda config, _: config.straggler_epochs < int(config.local_epochs),
    "straggler-epochs": lambda config, _: config.straggler_share > 0,
    "attack": lambda config, _: config.attackers > 0,
    "attack-scale": lambda config, _: config.attackers > 0 and config.attack != LABELS,
    "robust-trim": _with("aggregation", "trimmed-mean"),
    "secure-threshold": _with("secure_aggregation", "pairwise"),
    **{key: lambda config, _: config.dp_clip > 0 for key in ("dp-noise", "dp-epsilon", "dp-delta")},
    "finetune-epochs": lambda config, row: row.fine_tuned or config.finetune_epochs > 0,
    **{
        key: lambda config, _: config.finetune_epochs > 0
        for key in FINE_TUNING_KEYS
        if key != "finetune-epochs"
    },
    "finetune-turns": lambda config, _: (
        config.finetune_epochs > 0 and config.finetune_part == ALTERNATING
    ),
    **dict.fromkeys(SHARED, _own_models),
    **{key: _read_by_client(key) for key in ("momentum", "weight-decay")},
    **dict.fromkeys(("keep-state", "state-missing", "state-dir"), _keeps_states),
    **{key: _named(key) for key in ("eval-rule", "proto-collect")},
    "eval-when": _evaluates_received,
    **dict.fromkeys(("oi-objective", "oi-simplex"), _orthogonal),
    "proto-server-lr": lambda config, row: (
        _server_trains(config, row) and "fedgen-server-lr" not in row.keys
    ),
    "proto-batch-size": _server_trains,
    "feddor-scale-init": _scaled_heads,
    "feddor-generator": lambda config, row: (
        issubclass(row.server.kind, FedDOR) and row.server.parts is not feddor_without_oi
    ),
}


def applies(key: str, config: RunConfig, row: Method) -> bool:
    """Return whether a key changes anything in a resolved configuration."""
    if key in APPLIES:
        return APPLIES[key](config, row)
    shared = not any(key in each.keys for each in METHODS.values())
    return shared or key in _own_keys(row)


def without_effect(keys: Iterable[str], config: RunConfig) -> str:
    """Return a sentence that names those of the keys that change nothing; empty: all do."""
    row = find_method(config.method)
    fixed = {kebab(name) for name in row.fixed}
    idle = [key for key in keys if key in fixed or not applies(key, config, row)]
    if not idle:
        return ""
    verb = "has" if len(idle) == 1 else "have"
    return f"{', '.join(idle)} {verb} no effect with this method, data and partition"
