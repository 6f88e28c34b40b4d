"""Comparison of runs: means over seeds, and paired differences over common seeds.

Two single runs differ for many reasons; the method is one of them. Runs that differ only in their
seed are therefore one group with a mean and a spread, and two groups are compared seed by seed. A
seed determines the partition, the cohorts and the initial weights of both runs, so that these
common effects cancel.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from fedapp.config.key_groups import MACHINE, RECORDING, marked_keys
from fedapp.config.overrides import DEFAULT
from fedapp.config.run_keys import RunKeys
from fedapp.results.comparison.convergence import Reached, check_target, until_target, when_reached
from fedapp.results.comparison.paired import holm, paired_difference
from fedapp.results.comparison.result_numbers import result_numbers
from fedapp.results.comparison.spread import LAST10, RESULT_NUMBERS, spread_columns
from fedapp.results.outcome import outcome
from fedapp.results.run_directory import RunDirectory, Scalar

_VARIABLE_KEYS = marked_keys(RunKeys, RECORDING, MACHINE)
_DEFAULTS = {key: value for key, value in RunKeys.defaults().items() if value != "auto"}
Tables = dict[str, list[dict[str, Any]]]
_IMAGES = (  # they decide on what images a model is tested
    "dataset", "data-dir", "image-size", "test-share", "class-list", "classes", "pool-data",
    "validation-share",
)  # fmt: skip
# Settings that name a group wherever they differ: a method does not choose them.
_PROTOCOL = (
    *_IMAGES, "model", "partition", "shards", "alpha", "lda-cap", "classes-per-client",
    "unbalanced-sigma", "imbalance-factor", "partition-file", "partition-seed",
    "feature-skew", "feature-skew-level",
    "stochastic-every", "stochastic-from",
    "num-clients", "participation", "num-rounds", "straggler-share", "straggler-epochs",
    "new-clients", "attackers", "attack", "attack-scale",
)  # fmt: skip
# Settings that follow from data set and model, and name a group where these do not explain them.
_OF_DATA = (
    "local-epochs", "batch-size", "lr-schedule", "augmentation", "precision", "bn",
    "test-batch-size",
)  # fmt: skip
_OWN_IMAGES, _SEED, _PARTITION_SEED = "images", "seed", "partition-seed"
_SHOWN = (
    "method", "seed", "rounds", "status", "reason", "accuracy_final", LAST10, "accuracy_best",
    "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed, and their common configuration."""

    settings: dict[str, Scalar]
    runs: tuple[RunDirectory, ...]

    def by_seed(self, measure: str) -> dict[int, float]:
        """Return a number of summary.json by seed; repeated runs of a seed are averaged.

        Runs that did not complete are left out, because their last round is not the planned one.
        """
        values: dict[int, list[float]] = {}
        for summary in self.summaries:
            if summary.get("status") == "completed" and summary.get(measure) is not None:
                values.setdefault(int(summary["seed"]), []).append(float(summary[measure]))
        return {seed: statistics.fmean(group) for seed, group in sorted(values.items())}

    @property
    def accuracy_of(self) -> str:
        """Which models were tested on which images; "" if no run says so."""
        return max((str(each.get("accuracy_of") or "") for each in self.summaries), default="")

    def until(self, target: float) -> dict[str, Any]:
        """Return `until_target` over the seeds of which a run has completed or diverged.

        "unknown" has the other seeds, and those whose rounds are missing; "tested_every" is the
        number of rounds from one test to the next.
        """
        ended: dict[int, list[Reached | None]] = {}
        for run in self.runs:
            if outcome(run) and (rows := run.rounds()):
                ended.setdefault(int(run.config()[_SEED]), []).append(when_reached(rows, target))
        unknown = {int(run.config()[_SEED]) for run in self.runs} - ended.keys()
        every = self.settings.get("eval-every", 1)
        return {**until_target(ended), "unknown": sorted(unknown), "tested_every": every}

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """What the runs' files say of their results, in the order of the runs."""
        return [result_numbers(run) for run in self.runs]


def variable_keys(config: Mapping[str, Scalar]) -> frozenset[str]:
    """Return the keys in which runs of one experiment may differ: those of recording and machine.

    For own images data-dir is not one of them, because it determines the images.
    """
    own = config.get("dataset") == _OWN_IMAGES
    return _VARIABLE_KEYS - {"data-dir"} if own else _VARIABLE_KEYS


def group_runs(runs: Sequence[RunDirectory]) -> list[Group]:
    """Group runs that differ only in the seed and their `variable_keys`, in order.

    A partition seed that equals the seed ("auto" is recorded as its value) counts as part of the
    seed, unless it is the same in all runs. A key that is newer than a run has its default there,
    or is left out if it is a method's own: other versions have other methods.
    """
    by_settings: dict[tuple[tuple[str, Scalar], ...], list[RunDirectory]] = {}
    for run, own in zip(runs, comparable_configs(runs), strict=True):
        config = {**own, **run.used_files()}
        ignored = {*variable_keys(config), _SEED, _PARTITION_SEED}
        key = tuple(sorted((k, v) for k, v in config.items() if k not in ignored))
        by_settings.setdefault(key, []).append(run)
    return [
        Group({**dict(key), _PARTITION_SEED: partition_seed}, members)
        for key, same_settings in by_settings.items()
        for partition_seed, members in _by_partition_seed(same_settings).items()
    ]


def comparable_configs(runs: Sequence[RunDirectory]) -> list[dict[str, Scalar]]:
    """Return the runs' configurations, as if all were of the same version.

    A run without a newer key has its default. A method's own key that some run does not know is
    left out where it has its default.
    """
    configs = [run.config() for run in runs]
    own = {key for config in configs for key in config} - _DEFAULTS.keys()
    unknown = {key for key in own if any(key not in config for config in configs)}
    marks = [run.origins() if unknown else {} for run in runs]
    return [
        {
            **_DEFAULTS,
            **{k: v for k, v in config.items() if k not in unknown or of_run.get(k) != DEFAULT},
        }
        for config, of_run in zip(configs, marks, strict=True)
    ]


def _by_partition_seed(runs: list[RunDirectory]) -> dict[Scalar, tuple[RunDirectory, ...]]:
    configs = [run.config() for run in runs]
    pairs = [(config.get(_PARTITION_SEED, "auto"), config.get(_SEED)) for config in configs]
    if len({own for own, _ in pairs}) == 1 and len({seed for _, seed in pairs}) > 1:
        return {pairs[0][0]: tuple(runs)}
    groups: dict[Scalar, tuple[RunDirectory, ...]] = {}
    shared = {own for own, seed in pairs if own != seed}
    for run, (own, seed) in zip(runs, pairs, strict=True):
        marks = run.origins()  # other versions have none
        chosen = own in shared and marks and _PARTITION_SEED not in marks  # by the user
        name = "auto" if own == seed and not chosen else own
        groups[name] = (*groups.get(name, ()), run)
    return groups


def labels(groups: Sequence[Group]) -> list[str]:
    """Name each group by its method and the settings that distinguish it from other groups.

    Settings that follow from the method, such as its regulariser, are left out.
    """
    keys = dict.fromkeys(key for group in groups for key in group.settings if key != "method")
    distinguishing = [key for key in keys if _distinguishes(key, groups)]
    return [
        " ".join(
            [
                str(g.settings.get("method")),
                *(f"{k}={g.settings[k]}" for k in distinguishing if k in g.settings),
            ]
        )
        for g in groups
    ]


def run_labels(runs: Sequence[RunDirectory]) -> list[str]:
    """Name runs by method if the methods differ, otherwise by method and directory."""
    methods = [str(run.config().get("method", run.name)) for run in runs]
    if len(set(methods)) == len(methods):
        return methods
    return [f"{method} ({name})" for method, name in zip(methods, unique_names(runs), strict=True)]


def unique_names(runs: Sequence[RunDirectory]) -> list[str]:
    """Name runs by their directory, with as many parent folders as make the names different."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return []


def _distinguishes(key: str, groups: Sequence[Group]) -> bool:
    """Return whether a setting differs within a method; those of `_PROTOCOL` in all groups.

    Those of `_OF_DATA`: within a data set and model.
    """
    values: dict[tuple[Scalar | None, ...], set[Scalar | None]] = {}
    by = () if key in _PROTOCOL else ("dataset", "model") if key in _OF_DATA else ("method",)
    for group in groups:
        same = tuple(group.settings.get(each) for each in by)
        values.setdefault(same, set()).add(group.settings.get(key))
    return any(len(group) > 1 for group in values.values())


def compare(
    runs: Sequence[RunDirectory],
    groups: Sequence[Group] | None = None,
    target: float | None = None,
) -> Tables:
    """Compare runs and their groups, by default those of `group_runs`; accuracies are fractions.

    Returns:
        "runs": one row of numbers per run. "groups": mean and deviation over the seeds of the
            completed runs. "pairs": for two groups with at least two common seeds, the paired
            difference of the final accuracy, its standard error and its p value, raw and adjusted;
            not for a global model and personal ones, or for two sets of images. "targets": with a
            `target` accuracy, when each group reached it, as `Group.until`; otherwise empty.

    Raises:
        UserError: `target` is not above 0, or above 1.
    """
    goal = None if target is None else check_target(target)
    groups = group_runs(runs) if groups is None else groups
    names = labels(groups)
    return {
        "runs": _run_rows(runs, groups),
        "groups": [_group_row(name, g) for name, g in zip(names, groups, strict=True)],
        "pairs": _pair_rows(names, groups),
        "targets": [
            {"group": name, "target": goal, **group.until(goal)}
            for name, group in zip(names, groups, strict=True)
            if goal is not None
        ],
    }


def _run_rows(runs: Sequence[RunDirectory], groups: Sequence[Group]) -> list[dict[str, Any]]:
    pairs = [pair for each in groups for pair in zip(each.runs, each.summaries, strict=True)]
    summaries = {run.path: summary for run, summary in pairs}
    return [
        {"run": run.name, **{key: summaries[run.path].get(key) for key in _SHOWN}} for run in runs
    ]


def _comparable(one: Group, other: Group) -> bool:
    """Return whether the accuracies of two groups are of the same images, as far as is known."""
    images = {tuple(group.settings.get(key) for key in _IMAGES) for group in (one, other)}
    return len(images) == 1 and len({one.accuracy_of, other.accuracy_of} - {""}) <= 1


def all_comparable(groups: Sequence[Group]) -> bool:
    """Return whether the accuracies of all groups are of the same images and kind of model."""
    return all(_comparable(one, other) for one, other in combinations(groups, 2))


def _group_row(name: str, group: Group) -> dict[str, Any]:
    final = group.by_seed("accuracy_final")
    row = {"group": name, "runs": len(group.runs), "accuracy_of": group.accuracy_of}
    row["seeds"] = list(final)
    return row | spread_columns({name: group.by_seed(name).values() for name in RESULT_NUMBERS})


def _pair_rows(names: Sequence[str], groups: Sequence[Group]) -> list[dict[str, Any]]:
    finals = [group.by_seed("accuracy_final") for group in groups]
    rows: list[dict[str, Any]] = []
    for one, other in combinations(range(len(groups)), 2):
        if not _comparable(groups[one], groups[other]):
            continue
        pair = paired_difference(finals[one], finals[other])
        if pair is not None:
            rows.append(
                {
                    "group": names[one],
                    "minus": names[other],
                    "seeds": list(pair.seeds),
                    "difference": pair.difference,
                    "standard_error": pair.standard_error,
                    "p": pair.p_value,
                }
            )
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = adjusted
    return rows
