"""From what a user wrote to a complete configuration, or to one sentence that says what is wrong.

Keys at "auto" take the value of the method, or of its paper for this data set and model.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedapp.config.auto import (
    blend_settings,
    find_setting,
    group_settings,
    partition_settings,
    usual_model,
    usual_name,
)
from fedapp.config.checks import check_config
from fedapp.config.fine_tuning import stage_settings
from fedapp.config.overrides import read_overrides
from fedapp.config.project import merge
from fedapp.config.run_config import RunConfig
from fedapp.config.run_keys import kebab, sentence
from fedapp.core.errors import UserError
from fedapp.methods.table import FALLBACKS, check_regulariser, find_method


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Return the complete configuration that a flat one with kebab-case keys stands for.

    Raises:
        UserError: a key does not exist, a value is out of its range, or values do not fit together.
    """
    values = with_extension_keys(values)
    known = {kebab(name) for name in RunConfig.model_fields}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else "see `fedapp config` for all keys"
            raise UserError(f"run-config key '{key}' does not exist; {hint}")
    try:
        asked = RunConfig(**values)
    except ValidationError as error:
        raise UserError(sentence(RunConfig, error)) from None
    return resolve(asked.model_copy(update=find_method(asked.method).fixed))


def with_extension_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in which the pairs of the key `extension-keys` are keys of their own.

    Flower refuses keys that pyproject.toml does not list, so they come in one of its texts.
    """
    found = {key: value for key, value in values.items() if key != "extension-keys"}
    text = values.get("extension-keys", "")
    return {**found, **read_overrides([text])} if isinstance(text, str) and text.strip() else found


def load_run_config(project: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a project's defaults with overrides: flat, checked, unresolved, with absolute paths.

    Raises:
        UserError: the project has no defaults, or `parse_config` raises it.
    """
    values = merge(project, overrides)
    parse_config(values)
    return values


def resolve(config: RunConfig) -> RunConfig:
    """Replace every "auto" of a configuration; raises UserError if it cannot work."""
    row = find_method(config.method)
    if config.regulariser not in ("auto", "none"):
        check_regulariser(config.method, config.regulariser)
    dataset, name = usual_name(config.dataset), row.settings_of or config.method
    model = usual_model(config.dataset, row.models) if config.model == "auto" else config.model
    setting = find_setting(dataset, model)
    asked = "none" if config.regulariser in ("auto", row.loss.regulariser) else config.regulariser
    place = (dataset, model)
    chosen: dict[str, Any] = {
        **FALLBACKS,
        **blend_settings(name, asked, place, config.partition),
        **row.defaults,
        **setting.extras.get(name, {}),
        "model": model,
        **partition_settings(config),
        "local_epochs": row.defaults.get("local_epochs", setting.local_epochs),
        "batch_size": setting.batch_size,
        "test_batch_size": setting.test_batch_size,
        "lr": setting.rate(name, config.local_epochs, config.augmentation),
        "lr_schedule": setting.lr_schedule,
        "augmentation": setting.augmentation,
        "regulariser": row.loss.regulariser or "none",
        "model_group": "",
        "drop_last": row.personal is not None,
        **group_settings(config, row),
    }
    autos = {key: value for key, value in chosen.items() if getattr(config, key) == "auto"}
    resolved = config.model_copy(update=autos)
    resolved = resolved.model_copy(update=stage_settings(resolved, row))
    check_config(resolved)
    return resolved
