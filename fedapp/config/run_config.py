"""RunConfig: the values of all keys of one run, those of `run_keys` and of the methods' rows.

`[tool.flwr.app.config]` in pyproject.toml lists the same keys with the same defaults (a test
compares them). `resolve.parse_config` makes a RunConfig from a user's values.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model

from fedapp.config.extensions import foreign_keys, own_files
from fedapp.config.key_groups import LOCAL, RECORDING, field_name, kebab, marked_keys
from fedapp.config.overrides import AUTO, DEFAULT, FIXED
from fedapp.config.run_keys import KEY_GROUPS, RunKeys
from fedapp.core.extension_files import ExtensionFile
from fedapp.methods.row import GLOBAL
from fedapp.methods.table import find_method, method_keys

if TYPE_CHECKING:

    class _AllKeys(RunKeys):
        def __getattr__(self, name: str) -> Any: ...  # keys of methods: data, not annotations

else:
    _AllKeys = create_model(
        "_AllKeys",
        __base__=RunKeys,
        **{
            field_name(name): (key.kind, Field(key.default, description=key.meaning))
            for name, key in method_keys().items()
        },
    )


class RunConfig(_AllKeys):
    """The whole configuration of one run; its values are checked and immutable."""

    def flat(self) -> dict[str, Any]:
        """Return the configuration as a flat dictionary with kebab-case keys."""
        return self.model_dump(by_alias=True)

    @property
    def training_clients(self) -> int:
        """The number of clients that may train: the first ones."""
        return self.num_clients - self.new_clients

    @property
    def client_evaluation_every(self) -> int:
        """The number of rounds between evaluations on clients; 0: never."""
        every = self.eval_every if find_method(self.method).accuracy != GLOBAL else 0
        every = self.num_rounds if self.finetune_epochs else every  # once, after the last round
        return self.client_eval_every or every

    def recorded(self) -> dict[str, Any]:
        """Return `flat` without the keys of other methods of the user's or of packages.

        Whoever reads a run's configuration may lack their files. `resume` is empty, so that a run
        that repeats this one begins anew.
        """
        foreign = foreign_keys(self.method)
        own = {key: value for key, value in self.flat().items() if key not in foreign}
        return {**own, "resume": ""}

    def origins(self, unresolved: Mapping[str, Any]) -> dict[str, str]:
        """Return who has chosen the value of a recorded key: "default", "fixed" or "auto".

        "fixed" is a value that the method determines whatever the user says. All other keys are the
        user's choice. `unresolved` is the configuration with its "auto".
        """
        found: dict[str, str] = {}
        defaults, fixed = self.defaults(), set(map(kebab, find_method(self.method).fixed))
        for key, value in self.recorded().items():
            if value == defaults[key]:
                found[key] = DEFAULT
            elif key in fixed:
                found[key] = FIXED
            elif value != "auto" and unresolved.get(key, defaults[key]) == "auto":
                found[key] = AUTO
        return found

    def fingerprint(self) -> str:
        """Return a short hash of all values in which server and clients must agree."""
        return self.full_fingerprint()[:16]

    def full_fingerprint(self) -> str:
        """Return the whole hash, for which nobody can find another configuration."""
        text = json.dumps(self._agreed(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _agreed(self) -> dict[str, Any]:
        free = marked_keys(type(self), LOCAL, RECORDING)
        agreed = {key: value for key, value in self.recorded().items() if key not in free}
        files = self.extension()
        return agreed if files == "none" else {**agreed, "extension": files}

    def own_files(self) -> list[ExtensionFile]:
        """Return the user's files whose methods, losses, data sets or models this run uses."""
        kinds = ("method", "regulariser", "dataset", "model")
        return own_files({kind: getattr(self, kind) for kind in kinds})

    def extension(self) -> str:
        """Return names and hashes of the user's files that this run uses; "none" without one."""
        return ", ".join(map(str, self.own_files())) or "none"

    def changes_from(self, earlier: "RunConfig") -> list[str]:
        """Return "KEY is X and was Y" for each value that gives another fingerprint."""
        old, new = earlier._agreed(), self._agreed()
        return [
            f"{key} is {new[key]!r} and was {old[key]!r}"
            for key in new
            if key in old and new[key] != old[key]
        ]

    def lr_at(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1."""
        before = server_round - 1  # rounds before this one
        if self.lr_schedule == "exponential":
            return float(self.lr) * 0.99**before
        if self.lr_schedule == "cosine":
            return float(self.lr) * 0.5 * (1 + math.cos(math.pi * before / self.num_rounds))
        if self.lr_schedule == "step":
            half, three_quarters = self.num_rounds // 2, 3 * self.num_rounds // 4
            passed = (before >= max(half, 1)) + (before >= max(three_quarters, 1))
            return float(self.lr) * 0.1**passed
        return float(self.lr)


def group_of(key: str) -> str:
    """Return the group of a run-config key; the own keys of methods are in "method"."""
    fields = {kebab(name): group for group, cls in KEY_GROUPS.items() for name in cls.model_fields}
    return fields.get(key, "method")
