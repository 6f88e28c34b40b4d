"""RunConfig: how a configuration is read and resolved; its keys: `run_keys` and `method_keys`.

`[tool.flwr.app.config]` in pyproject.toml lists the same keys with the same defaults (a test
compares them). Whatever is wrong with a configuration is said in one sentence before anything
starts. Keys at "auto" take the method's or the paper's value in `RunConfig.resolve`.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from fedapp.config_input import kebab, sentence, whole_floats
from fedapp.errors import UserError
from fedapp.method_keys import MethodKeys
from fedapp.methods import FALLBACKS, check_regulariser, find_method
from fedapp.run_keys import KEEPING, LOCAL, marked_keys
from fedapp.settings import find_setting, usual_model, usual_name
from fedapp.tuned import blend_settings


class RunConfig(MethodKeys):
    """The whole configuration of one run: all keys, read, resolved and checked."""

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Read a flat run configuration and resolve it; raises UserError with one sentence."""
        known = {kebab(name) for name in cls.model_fields}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean '{near[0]}'?" if near else "see `fedapp config` for all keys"
                raise UserError(f"run-config key '{key}' does not exist; {hint}")
        try:
            asked = cls(**whole_floats(cls, values))
        except ValidationError as error:
            raise UserError(sentence(cls, error)) from None
        return asked.model_copy(update=find_method(asked.method).fixed).resolve()

    def resolve(self) -> "RunConfig":
        """Replace every "auto"; raises UserError if the configuration cannot work."""
        from fedapp.checks import check_config
        from fedapp.data.defaults import partition_settings
        from fedapp.fine_tuning import stage_settings
        from fedapp.models.groups import group_settings

        row = find_method(self.method)
        if self.regulariser not in ("auto", "none"):
            check_regulariser(self.method, self.regulariser)
        dataset, name = usual_name(self.dataset), row.settings_of or self.method
        model = usual_model(self.dataset, row.models) if self.model == "auto" else self.model
        setting = find_setting(dataset, model)
        asked = "none" if self.regulariser in ("auto", row.regulariser) else self.regulariser
        place = (dataset, model)
        chosen: dict[str, Any] = {
            **FALLBACKS,
            **blend_settings(name, asked, place, self.partition),
            **row.defaults,
            **setting.extras.get(name, {}),
            "model": model,
            **partition_settings(self),
            "local_epochs": row.defaults.get("local_epochs", setting.local_epochs),
            "batch_size": setting.batch_size,
            "test_batch_size": setting.test_batch_size,
            "lr": setting.rate(name, self.local_epochs, self.augmentation),
            "lr_schedule": setting.lr_schedule,
            "augmentation": setting.augmentation,
            "regulariser": row.regulariser or "none",
            "model_group": "",
            "drop_last": row.personal is not None,
            **group_settings(self, row),
        }
        autos = {k: v for k, v in chosen.items() if getattr(self, k) == "auto"}
        resolved = self.model_copy(update=autos)
        resolved = resolved.model_copy(update=stage_settings(resolved, row))
        check_config(resolved)
        return resolved

    def flat(self) -> dict[str, Any]:
        """Return the configuration with its kebab-case keys, as Flower and TOML take it."""
        return self.model_dump(by_alias=True)

    def chosen(self, asked: Mapping[str, Any]) -> frozenset[str]:
        """Return the keys whose values "auto" chose, where `asked` is unresolved."""
        fields, values = type(self).model_fields.items(), self.flat()
        autos = {kebab(n) for n, f in fields if asked.get(kebab(n), f.default) == "auto"}
        return frozenset(key for key in autos if values[key] != "auto")

    def fingerprint(self) -> str:
        """Return a hash of all that server and clients must agree on."""
        own = marked_keys(type(self), LOCAL, KEEPING)
        agreed = {key: value for key, value in self.flat().items() if key not in own}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]

    def lr_at(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        before = server_round - 1
        if self.lr_schedule == "exponential":
            return float(self.lr) * 0.99**before
        if self.lr_schedule == "cosine":
            return float(self.lr) * 0.5 * (1 + math.cos(math.pi * before / self.num_rounds))
        if self.lr_schedule == "step":
            half, three_quarters = self.num_rounds // 2, 3 * self.num_rounds // 4
            passed = (before >= max(half, 1)) + (before >= max(three_quarters, 1))
            return float(self.lr) * 0.1**passed
        return float(self.lr)
