"""A user's callbacks: what they can access, what they add, and the effects of their errors."""

import json
from pathlib import Path

import pytest
from in_process import settings

from fedapp import server_app
from fedapp.core.errors import UserError
from fedapp.engines.in_process import InProcessGrid
from fedapp.runtime.callbacks import ActiveRun, Callback

EXAMPLES = Path(__file__).parents[3] / "examples"


class Witness(Callback):
    """Records the hooks that were called."""

    def __init__(self) -> None:
        self.calls = []
        WITNESSES.append(self)

    def run_begins(self, run: ActiveRun) -> None:
        self.calls.append(("begins", run.first_round, sorted(run.arrays)))

    def round_ends(self, run, row):
        self.calls.append(("round", row["round"], row["accuracy"]))

    def run_ends(self, run, summary):
        self.calls.append(("ends", summary["status"]))

    def close(self):
        self.calls.append(("closed",))


class Broken(Callback):
    """Fails in its second round."""

    def round_ends(self, run, row):
        row["tries"] = row["round"]
        if row["round"] == 2:
            raise ZeroDivisionError("no luck")


class Unwritable(Callback):
    """Adds values that JSON cannot represent, and one that it can."""

    def round_ends(self, run, row):
        row |= {"fine": row["round"], "odd": {1, 2}, "accuracy": object()}

    def run_ends(self, run, summary):
        summary["odd"] = object()


class NotOne:
    """No callback."""


class Careless(Callback):
    """Spoils a field that the run needs."""

    def round_ends(self, run, row):
        self.spoil(row)


class Appends(Careless):
    def spoil(self, row):
        row["failures"].append({1, 2})


class Formats(Careless):
    def spoil(self, row):
        row["accuracy"] = f"{row['accuracy']:.1%}"


class Removes(Careless):
    def spoil(self, row):
        del row["accuracy"]


class Fussy(Callback):
    """A callback whose constructor fails."""

    def __init__(self):
        raise ValueError("not today")


class Needy(Callback):
    """A callback that nobody can make by its name alone."""

    def __init__(self, folder):
        self.folder = folder


WITNESSES: list[Witness] = []


@pytest.fixture
def train(tmp_path):
    def run(callbacks: str):
        where = {"output_dir": str(tmp_path), "run_name": "run", "num_rounds": 3, "num_clients": 5}
        values = settings(method="fedavg", callbacks=callbacks, **where)
        server_app.run(InProcessGrid(values), values, "", 0.0)
        folder = tmp_path / "run"
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return rows, json.loads((folder / "summary.json").read_text())

    return run


def test_the_hooks_are_called_in_order(train):
    rows, _ = train(f"{__name__}:Witness")
    begins, *rounds, ends, closed = WITNESSES[-1].calls
    assert begins[:2] == ("begins", 1)
    assert begins[2]
    assert rounds == [("round", row["round"], row["accuracy"]) for row in rows]
    assert (ends, closed) == (("ends", "completed"), ("closed",))


def test_the_example_adds_to_rounds_and_summary(train, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    rows, summary = train("own_callback:WorstClass")
    for row in rows:
        assert row["worst_class_accuracy"] == min(row["class_accuracy"])
    assert summary["hardest_class"] in {row["worst_class"] for row in rows}


def test_the_first_error_is_reported_and_stops_no_round(train, capsys):
    rows, summary = train(f"{__name__}:Broken")
    assert [row.get("tries") for row in rows] == [1, 2, None]
    assert summary["status"] == "completed"
    assert summary["failed_callbacks"] == [f"{__name__}:Broken"]
    errors = [line for line in capsys.readouterr().out.splitlines() if "Broken" in line]
    assert len(errors) == 1
    assert "not called any more: ZeroDivisionError('no luck') in" in errors[0]


def test_a_value_that_json_cannot_represent_is_reported_and_stops_no_round(train, capsys):
    rows, summary = train(f"{__name__}:Unwritable")
    assert [row.get("fine") for row in rows] == [1, None, None]
    assert not any("odd" in row for row in rows)
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert summary["failed_callbacks"] == [f"{__name__}:Unwritable"]
    assert "JSON cannot hold 'accuracy', which is of type object" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "key"), [("Appends", "failures"), ("Formats", "accuracy"), ("Removes", "accuracy")]
)
def test_a_spoiled_field_is_restored_and_stops_no_round(train, capsys, name, key):
    rows, summary = train(f"{__name__}:{name}")
    assert [row["failures"] for row in rows] == [[], [], []]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert (summary["status"], summary["failed_callbacks"]) == ("completed", [f"{__name__}:{name}"])
    [said] = [line for line in capsys.readouterr().out.splitlines() if "not called" in line]
    assert f"'{key}'" in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no-such", "callback 'no-such' is not installed"),
        ("no_such_module:Class", "cannot be imported: ModuleNotFoundError: No module named 'no"),
        ("divides:Class", "cannot be imported: ZeroDivisionError: division by zero"),
        (f"{__name__}:Fussy", "cannot be made without arguments: ValueError: not today"),
        (f"{__name__}:Absent", "cannot be imported"),
        (f"{__name__}:NotOne", "is not a subclass of fedapp.runtime.callbacks.base.Callback"),
        (f"{__name__}:Needy", "cannot be made without arguments: TypeError: .* 'folder'"),
    ],
)
def test_a_wrong_name_is_one_sentence_before_training(train, name, sentence, tmp_path, monkeypatch):
    (tmp_path / "divides.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=sentence):
        train(name)
