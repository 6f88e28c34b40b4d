"""The files of a run's measures: analysis.json for programs, analysis.csv for spreadsheets.

Measuring a round again replaces the same measures and keeps the round's other measures, so that
measures can be added one by one.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from fedapp.config.measures import CLASS_ACCURACY_MEASURES
from fedapp.core.errors import UserError
from fedapp.core.files import json_text, parse_object, to_json_types, write_atomically
from fedapp.core.locks import lock_file
from fedapp.results.run_directory import RunDirectory

Entry = dict[str, Any]
COLUMNS = ("round", "measure", "client", "figure", "value")


def read(run: RunDirectory) -> list[Entry]:
    """Return the measured rounds in ascending order; [] if nothing was measured.

    Raises UserError if the file is damaged.
    """
    path = run.path / "analysis.json"
    if not path.exists():
        return []
    content = parse_object(path.read_bytes())
    rounds = content.get("rounds") if content else None
    if not isinstance(rounds, list) or not all(map(_is_entry, rounds)):
        raise UserError(f"{path} has no list of measured rounds; remove it or restore it.")
    return rounds


def _is_entry(value: Any) -> bool:
    """Return whether a value of analysis.json is a round with measures by name."""
    if not isinstance(value, dict) or type(value.get("round")) is not int:
        return False
    measures = value.get("measures")
    return isinstance(measures, dict) and all(isinstance(m, dict) for m in measures.values())


def add(run: RunDirectory, entry: Mapping[str, Any]) -> list[Entry]:
    """Add a round's measures to the files and return all rounds in them.

    Several processes may do so at a time.
    """
    with _locked(run):
        earlier = {old["round"]: old for old in read(run)}
        new = to_json_types(entry)  # as `read` will return it
        before = earlier.get(new["round"], {"measures": {}})
        measures = {**before["measures"], **new["measures"]}
        trained = new if new.get("clients") or new.get("diverged") else {**new, **_training(before)}
        earlier[new["round"]] = {**before, **trained, "measures": measures}
        rounds = [earlier[number] for number in sorted(earlier)]
        _write(run, rounds)
    return rounds


def _training(entry: Entry) -> Entry:
    """Return what a round's entry says about the clients that were trained again."""
    words = ("clients", "diverged", "training_seconds")
    return {word: entry[word] for word in words if word in entry}


def truncate(run: RunDirectory, after: int) -> None:
    """Remove rounds later than `after`, which a resumed run measures again."""
    if (run.path / "analysis.json").exists():
        with _locked(run):
            _write(run, [entry for entry in read(run) if entry["round"] <= after])


def _locked(run: RunDirectory) -> AbstractContextManager[None]:
    return lock_file(run.path / ".analysis.lock")


def _write(run: RunDirectory, rounds: list[Entry]) -> None:
    write_atomically(run.path / "analysis.json", json_text({"rounds": rounds}).encode())
    write_atomically(run.path / "analysis.csv", _csv(rounds).encode())


def figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's main numbers by name: means over clients, and those of the global model."""
    main: dict[str, float] = {}
    for word, measure in entry["measures"].items():
        for part in ("mean", "model"):
            values = measure.get(part) or {}
            main |= {f"{word}/{key}": v for key, v in values.items() if isinstance(v, float)}
    return main


def newest(entries: Iterable[Entry], words: Sequence[str], rounds: Sequence[int]) -> dict[str, Any]:
    """Return the newest main figures of these measures, and as "round" the rounds that they are of.

    `rounds`, if there are any, are those to look for measures of models in. Figures of the history
    are those of its end.
    """
    found: dict[str, tuple[int, dict[str, float]]] = {}
    for entry in entries:
        for word, measure in entry["measures"].items():
            asked = not rounds or entry["round"] in rounds or word in CLASS_ACCURACY_MEASURES
            if asked and word in words:
                found[word] = entry["round"], figures({"measures": {word: measure}})
    if not found:
        return {}
    of = ", ".join(map(str, sorted({number for number, _ in found.values()})))
    return {"round": of} | {n: v for _, values in found.values() for n, v in values.items()}


def _csv(rounds: list[Entry]) -> str:
    """Write one line per number; the client is empty for means and for the global model."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row for entry in rounds for row in _lines(entry))
    return text.getvalue()


def _lines(entry: Entry) -> Iterator[tuple[Any, ...]]:
    for word, measure in entry["measures"].items():
        for row in measure.get("clients", []):
            for name, value in row.items():
                if name != "client":
                    yield entry["round"], word, row["client"], name, value
        for part in ("mean", "std", "model"):
            for name, value in (measure.get(part) or {}).items():
                if isinstance(value, int | float):
                    yield entry["round"], word, "", f"{part} {name}", value
