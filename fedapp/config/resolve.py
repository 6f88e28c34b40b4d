"""From a user's values to a complete configuration, or to one sentence about the first error.

Keys at "auto" take the value of the method, or of its paper for this data set and model.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedapp.config.auto import (
    blend_settings,
    default_model,
    find_setting,
    group_settings,
    is_ordinary,
    partition_settings,
    settings_name,
)
from fedapp.config.checks import check_config, check_new_run
from fedapp.config.extensions import check_files
from fedapp.config.fine_tuning import fine_tuning_settings
from fedapp.config.key_groups import field_name, kebab
from fedapp.config.overrides import with_extension_keys
from fedapp.config.paper_settings import GUESS, Rate, Setting
from fedapp.config.privacy import privacy_settings
from fedapp.config.project import merge
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError, nearest
from fedapp.core.keys import must_be
from fedapp.methods.row import Method
from fedapp.methods.table import FALLBACKS, check_regulariser, find_method

_OTHER_NAMES = {  # of other frameworks and papers
    "learning-rate": "lr", "client-lr": "lr", "eta": "lr",
    "algorithm": "method", "strategy": "method", "backbone": "model",
    "fraction-fit": "participation", "join-ratio": "participation",
    "num-server-rounds": "num-rounds",
}  # fmt: skip


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the complete configuration for a flat one with kebab-case keys.

    Raises:
        UserError: a key does not exist, a value is out of its range, or values do not fit together.
    """
    return resolve(parse_unresolved(values))


def parse_unresolved(values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with its values at "auto" as they are; raises UserError.

    An unknown method is named before an unknown key, which may be that method's own.
    """
    check_files()
    values = with_extension_keys(values)
    known = {kebab(name) for name in RunConfig.model_fields}
    for key in values:
        if key not in known:
            find_method(str(values.get("method", RunConfig.model_fields["method"].default)))
            raise unknown_key(key, known)
    _check_text(values)
    try:
        return RunConfig(**values)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None


def unknown_key(name: str, known: Collection[str]) -> UserError:
    """Return the error for a run-config key that does not exist, with the nearest key."""
    other = _OTHER_NAMES.get(kebab(name.lower()))
    near = [other] if other else nearest(name, known, 1, 0.6)
    hint = f"did you mean '{near[0]}'?" if near else "see `fedapp config` for all keys"
    return UserError(f"run-config key '{name}' does not exist; {hint}")


def _check_text(values: Mapping[str, Any]) -> None:
    """Raise UserError for a text that no file of the run could hold, such as a path's odd bytes."""
    for key, value in values.items():
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise UserError(
                f"run-config key '{key}' is {value!r} but must be text in UTF-8; rename the file "
                "or folder"
            ) from None


def _sentence(error: ValidationError) -> str:
    """Return one sentence about the first error of a configuration."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    of_key = [each for each in error.errors() if each["loc"][0] == key]
    message = must_be(first)
    takes_auto = any("auto" in str(each.get("ctx", "")) for each in of_key)
    auto = " or 'auto'" if takes_auto and "'auto'" not in message else ""
    help_text = RunConfig.model_fields[field_name(key)].description
    return f"run-config key '{key}' is {first['input']!r} but must be {message}{auto} ({help_text})"


def load_run_config(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a project's defaults with overrides: flat, checked, not resolved, with absolute paths.

    Raises:
        UserError: the project has no defaults, or `parse_config` refuses the configuration.
    """
    values = merge(project, overrides)
    check_new_run(parse_config(values))
    return values


def resolve(config: RunConfig) -> RunConfig:
    """Replace every "auto" of a configuration; raises UserError if the result cannot work."""
    row = find_method(config.method)
    resolved = _filled(config, layers(config))
    if resolved.regulariser not in ("none", row.loss.regulariser):
        check_regulariser(config.method, resolved.regulariser)
    check_config(resolved)
    return resolved


@dataclass(frozen=True)
class Layer:
    """Values of keys that replace "auto", or any value of the user's if they are `fixed`."""

    source: str
    values: Mapping[str, Any]
    fixed: bool = False

    def taken(self, config: RunConfig) -> dict[str, Any]:
        """Return the values that replace those of a configuration, by field."""
        values = {field_name(key): value for key, value in self.values.items()}
        return {k: v for k, v in values.items() if self.fixed or getattr(config, k) == "auto"}


def _filled(config: RunConfig, found: Iterable[Layer]) -> RunConfig:
    values = {key: value for layer in found for key, value in layer.taken(config).items()}
    return config.model_copy(update=values)


def layers(config: RunConfig) -> list[Layer]:
    """Return everything that determines values beside the user; a later layer wins."""
    row = find_method(config.method)
    fixed = Layer(f"fixed by {config.method}", row.fixed, fixed=True)
    config = _filled(config, [Layer(row.source, row.defaults), fixed])
    autos = [Layer(source, values) for source, values in _autos(config, row)]
    tuning = fine_tuning_settings(_filled(config, autos), row)
    return [*autos, Layer(f"fine-tuning as in {tuning['finetune_protocol']}", tuning), fixed]


def _autos(config: RunConfig, row: Method) -> list[tuple[str, dict[str, Any]]]:
    """Return what "auto" may mean in training, as values with their source."""
    dataset, name, model, setting, rate = _published(config, row)
    own = config.regulariser in ("auto", row.loss.regulariser)
    added = "none" if own else config.regulariser
    protocol = {
        "local_epochs": setting.local_epochs,
        "batch_size": setting.batch_size,
        "test_batch_size": setting.test_batch_size,
        "lr_schedule": setting.lr_schedule,
        "augmentation": setting.augmentation,
    }
    parts = {"model_group": "", "regulariser": row.loss.regulariser or "none"}
    blend = blend_settings(name, added, (dataset, model), config.partition)
    return [
        ("fedapp", FALLBACKS),
        (setting.source, protocol),
        ("FedDr+ table 12", blend),
        (f"{rate.origin}; {setting.source}", {"lr": rate.value}),
        ("usual for the data set", {"model": model}),
        ("the partition", partition_settings(config)),
        ("the method", {**parts, "drop_last": row.heterogeneous is not None}),
        ("FedDOR", group_settings(config, row)),
        (row.source, row.defaults),
        (setting.source, _extras(setting, name, () if name == config.method else row.defaults)),
        ("the privacy budget", privacy_settings(config)),
    ]


class _Published(NamedTuple):
    """Which published setting and learning rate a configuration with its "auto" takes."""

    dataset: str  # these three are the names in the settings
    method: str
    model: str
    setting: Setting
    rate: Rate


def _published(config: RunConfig, row: Method) -> _Published:
    dataset, name = settings_name(config.dataset), row.settings_of or config.method
    model = default_model(config.dataset, row.needs) if config.model == "auto" else config.model
    setting = find_setting(dataset, model)
    rate = setting.rate(name, is_ordinary(name, row), config.local_epochs, config.augmentation)
    return _Published(dataset, name, model, setting, rate)


def _extras(setting: Setting, name: str, own: Collection[str]) -> dict[str, float]:
    """Return a method's published weights on this data set; the keys in `own` have others."""
    kept = {field_name(key) for key in own}
    return {key: value for key, value in setting.extras.get(name, {}).items() if key not in kept}


def rate_note(asked: Mapping[str, Any], config: RunConfig) -> str:
    """Return a sentence for a learning rate that "auto" had to guess; empty: it did not.

    `asked` is the configuration before it was resolved.
    """
    row, unresolved = find_method(config.method), parse_unresolved(asked)
    guessed = unresolved.lr == "auto" and _published(unresolved, row).rate.origin == GUESS
    if not guessed or row.heterogeneous is not None or "lr" in {**row.defaults, **row.fixed}:
        return ""
    lr = float(config.lr)
    return (
        f"no published learning rate for {config.method} on {config.dataset} with {config.model}: "
        f'{lr:g} is a guess; compare others with fedapp sweep -c "YOUR KEYS" --vary '
        f'"lr={lr / 3:.2g},{lr:g},{lr * 3:.2g}" --name rates'
    )
