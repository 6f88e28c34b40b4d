"""The evidence: runs become data, and the pages' tables are what the data say."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from fedapp.config import RunConfig
from fedapp.papers.cells import cells_of, select
from fedapp.papers.plan import PlannedRun, Request
from fedapp.papers.tables import find_paper
from fedapp.results.run_directory import RunDirectory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def evidence(monkeypatch):
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("evidence", BENCHMARKS / "evidence.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "evidence", module)
    spec.loader.exec_module(module)
    return module


def make_run(folder: Path, accuracies: list[float], status: str = "") -> RunDirectory:
    """Write a run of a published cell that got so far."""
    paper = find_paper("fedntd")
    cell = select(cells_of(paper, paper.table("table1-sharding")), "fedavg cifar10 s=2")
    planned = PlannedRun(cell, 0, Request(folder, dataset_as="images"))
    config = RunConfig.parse(planned.overrides).flat()
    run = RunDirectory.create(folder, planned.name, config, resume=True)
    for number, accuracy in enumerate(accuracies, 1):
        run.log_round(
            {
                "round": number,
                "accuracy": accuracy,
                "loss": 1.0,
                "train_loss": 1.0,
                "seconds": 3600.0,
                "class_accuracy": [accuracy, 0.5],
            }
        )
    if status:
        run.write_summary({"status": status})
    return run


def test_a_run_becomes_lines_and_replaces_its_earlier_ones(evidence, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.2])
    for _ in range(2):
        evidence.collect([tmp_path / "runs"], "abc", "a laptop")
    [line] = evidence.read("runs.csv")
    assert (line["cell"], line["published"]) == ("fedavg cifar10 s=2", "40.14")
    assert (line["done"], line["status"], line["commit"]) == ("1", "unfinished", "abc")
    make_run(tmp_path / "runs", [0.3, 0.1], "completed")
    evidence.collect([tmp_path / "runs"], "abc", "a laptop")
    [line] = evidence.read("runs.csv")
    assert (line["final %"], line["best %"]) == ("10.00", "30.00")
    assert [each["accuracy %"] for each in evidence.read("rounds.csv")] == [
        "20.00",
        "30.00",
        "10.00",
    ]
    assert line["forgetting"] == "0.100"  # (0.3 - 0.1 + 0.5 - 0.5) / 2


def test_unfinished_runs_are_not_compared(evidence, tmp_path, monkeypatch):
    monkeypatch.setattr(evidence, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.2, 0.4])
    evidence.collect([tmp_path / "runs"], "abc", "a laptop")
    table = evidence.published_beside_ours("fedntd", "table1-sharding", evidence.read("runs.csv"))
    row = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert row[:4] == ["fedavg cifar10 s=2", "40.14", "40.00 so far", "-"]
    assert row[6] == "2 of 200"
    assert row[-2] == "0.59"  # published forgetting


def test_the_pages_have_the_tables_and_pictures_of_the_data(evidence):
    runs = [line for line in evidence.read("runs.csv") if line["paper"]]
    assert runs
    for page in evidence.PAGES:
        text = page.read_text("utf-8")
        assert evidence.filled(text, runs) == text, "run python benchmarks/evidence.py write"
    page = evidence.PAGES[0].read_text("utf-8")
    for line in runs:
        assert f"<!-- evidence: {line['paper']} {line['table']} -->" in page
        assert evidence.picture_name(evidence._panel(line)) in page
    for picture in re.findall(r"images/(evidence-[^)]+)\)", page):
        assert (evidence.IMAGES / picture).is_file()


def test_every_run_has_its_rounds(evidence):
    last = {line["run"]: line for line in evidence.read("rounds.csv")}
    for line in evidence.read("runs.csv"):
        assert last[line["run"]]["accuracy %"] == line["final %"]
