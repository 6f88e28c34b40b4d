"""A comparison of runs in words: its tables as text, and the largest differences as sentences.

The command and the page show the same text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedapp.results.comparison.spread import ACCURACIES, accuracy_texts
from fedapp.results.formatting import percent, status

Compared = Mapping[str, Sequence[Mapping[str, Any]]]  # the result of `comparison.compare`
_SENTENCES = 3  # most differences in words


def tables(compared: Compared) -> dict[str, list[dict[str, Any]]]:
    """Return a comparison as formatted tables by title; a table without rows is left out."""
    groups = compared["groups"]
    several = len({row["accuracy_of"] for row in groups}) > 1
    titled: dict[str, list[dict[str, Any]]] = {
        "Runs": [_run_text(row) for row in compared["runs"]],
        "Groups: mean ± standard deviation over seeds": [
            {**_group_text(row, several), **accuracies, "seconds": row["seconds"]}
            for row, accuracies in zip(groups, accuracy_texts(groups), strict=True)
        ],
        "Until a target accuracy: mean ± standard deviation over seeds": [
            _target_text(row) for row in compared["targets"]
        ],
        "Final accuracy, paired by seed: difference ± standard error in points": [
            _pair_text(row) for row in compared["pairs"]
        ],
    }
    return {title: rows for title, rows in titled.items() if rows}


def sentences(compared: Compared) -> list[str]:
    """Return the largest paired differences as sentences, and how many the table has beside."""
    rows = sorted(compared["pairs"], key=lambda row: -abs(row["difference"]))
    smaller = len(rows[_SENTENCES:])
    rest = [f"The table has {smaller} more."] if smaller else []
    return [*map(_sentence, rows[:_SENTENCES]), *rest]


def _sentence(row: Mapping[str, Any]) -> str:
    points = 100 * row["difference"]
    better, worse = row["group"], row["minus"]
    if points < 0:
        better, worse = worse, better
    doubt = "" if row["p_holm"] is None else f", p = {row['p_holm']:.2g} after Holm's correction"
    seeds = f"{len(row['seeds'])} seeds"
    if round(abs(points), 2) == 0:
        return f"{better} and {worse} end equal ({seeds}{doubt})."
    return f"{better} is {abs(points):.2f} points above {worse} ({seeds}{doubt})."


def _run_text(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {**row, "status": status(row), **{key: percent(row[key]) for key in ACCURACIES}}
    return {ACCURACIES.get(key, key): value for key, value in shown.items() if key != "reason"}


def _group_text(row: Mapping[str, Any], with_models: bool) -> dict[str, Any]:
    columns = {"group": row["group"], "runs": row["runs"], "seeds": _joined(row["seeds"])}
    return columns | ({"accuracy of": row["accuracy_of"]} if with_models else {})


def _pair_text(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": row["group"],
        "minus": row["minus"],
        "seeds": _joined(row["seeds"]),
        "difference": f"{100 * row['difference']:+.2f} ± {100 * row['standard_error']:.2f}",
        "p": row["p"],
        "p (Holm)": row["p_holm"],
    }


def _target_text(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return when a group reached a target; where some seeds did not, every figure says so."""
    some = len(row["reached"])
    total = some + len(row["not_reached"])
    of_seeds = f"{some} of {total} {'seed' if total == 1 else 'seeds'}"
    part = "" if some == total else f" ({of_seeds})"
    figures = {"MB until then": "megabytes", "seconds until then": "seconds"}
    return {
        "group": row["group"],
        f"reached {100 * row['target']:.6g} %": _reached_text(row, of_seeds),
        **{
            head: None if row[key] is None else f"{_number_text(row, key)}{part}"
            for head, key in figures.items()
        },
    }


def _reached_text(row: Mapping[str, Any], of_seeds: str) -> str:
    """Return the round of a target in words: "in round 74 ± 6 (3 of 3 seeds)"."""
    missed, every = len(row["not_reached"]), row["tested_every"]
    notes = [of_seeds] if row["reached"] or missed else []
    notes += ["the mean is over these"] if missed and len(row["reached"]) > 1 else []
    notes += [f"tested every {every} rounds"] if every > 1 else []
    notes += [f"{len(row['unknown'])} not ended"] if row["unknown"] else []
    when = f"in round {_number_text(row, 'round')}" if row["reached"] else "never"
    return f"{when} ({', '.join(notes)})"


def _number_text(row: Mapping[str, Any], key: str) -> str:
    """Return mean and deviation with as many decimals as the size of the mean needs."""
    mean, std = row[key], row[f"{key}_std"]
    whole = mean >= 20 or (std is None and float(mean).is_integer())
    decimals = 0 if whole else 1 if mean >= 1 else 3
    return f"{mean:,.{decimals}f}" + ("" if std is None else f" ± {std:,.{decimals}f}")


def _joined(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
