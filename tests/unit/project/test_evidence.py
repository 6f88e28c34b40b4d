"""The evidence: runs become data, and the pages' tables are what the data say."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedapp.config.resolve import parse_config
from fedapp.experiments.papers.cells import cells_of, select
from fedapp.experiments.papers.plan import PlannedRun, Request
from fedapp.experiments.papers.tables import find_paper
from fedapp.results.run_directory import RunDirectory

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def data(monkeypatch):
    """Return the module that makes the lines."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("evidence_data")


@pytest.fixture
def pages(data):
    """Return the module that makes the tables."""
    return importlib.import_module("evidence_pages")


FEDAVG = ("fedntd", "table1-sharding", "fedavg cifar10 s=2")
DR = ("feddr+", "table2-synergy", "dr cifar100 s=10")
FEDDOR = ("feddor", "table4-ablation", "feddor cifar100")


def make_run(
    folder: Path,
    accuracies: list[float],
    status: str = "",
    published: tuple[str, str, str] = FEDAVG,
    **request: Any,
) -> RunDirectory:
    """Write a run of a published cell that got so far."""
    paper = find_paper(published[0])
    cell = select(cells_of(paper, paper.table(published[1])), published[2])
    dataset = "images" if published == FEDAVG else ""
    planned = PlannedRun(cell, 0, Request(folder, dataset_as=dataset, **request))
    config = parse_config(planned.overrides).flat()
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


def test_a_run_becomes_lines_and_replaces_its_earlier_ones(data, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.2])
    for _ in range(2):
        data.collect([tmp_path / "runs"], "abc", "a laptop")
    [line] = data.read("runs.csv")
    assert (line["cell"], line["published"]) == ("fedavg cifar10 s=2", "40.14")
    assert (line["done"], line["status"], line["commit"]) == ("1", "unfinished", "abc")
    make_run(tmp_path / "runs", [0.3, 0.1], "completed")
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    [line] = data.read("runs.csv")
    assert (line["final %"], line["best %"]) == ("10.00", "30.00")
    assert [each["accuracy %"] for each in data.read("rounds.csv")] == [
        "20.00",
        "30.00",
        "10.00",
    ]
    assert line["forgetting"] == "0.100"  # (0.3 - 0.1 + 0.5 - 0.5) / 2


def test_forgetting_of_a_run_that_was_not_tested_in_each_round_is_left_out(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    run = make_run(tmp_path / "runs", [0.3, 0.1], "completed")
    rows = [json.loads(line) for line in run.metrics_path.read_text().splitlines()]
    rows[1]["round"] = 20
    run.metrics_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    assert [line["forgetting"] for line in data.read("runs.csv")] == [""]


def test_unfinished_runs_are_not_compared(data, pages, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.2, 0.4])
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    table = pages.published_beside_ours("fedntd", "table1-sharding", data.read("runs.csv"))
    row = [cell.strip() for cell in table.splitlines()[-1].split("|")[1:-1]]
    assert row[:4] == ["fedavg cifar10 s=2", "40.14", "40.00 so far", "-"]
    assert (row[4], row[6]) == ("40.00 so far", "2 of 200")
    assert row[-2] == "0.59"  # published forgetting


def test_a_table_of_best_rounds_is_compared_with_the_best_round(data, pages, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.3, 0.48, 0.4], "completed", FEDDOR)
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    assert data.read("runs.csv")[0]["model"] == "MHMG8"
    table = pages.published_beside_ours("feddor", "table4-ablation", data.read("runs.csv"))
    head, row = ([cell.strip() for cell in table.splitlines()[i].split("|")] for i in (0, -1))
    found = dict(zip(head, row, strict=True))
    assert (found["published"], found["ours, best round"]) == ("47.06 ± 0.27", "48.00")
    assert (found["difference"], found["final"]) == ("+0.94", "40.00")


def test_networks_with_batchnorm_are_compared_on_each_clients_own_images(
    data, pages, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    run = make_run(tmp_path / "new", [0.3, 0.4], published=DR)
    make_run(tmp_path / "old", [0.2, 0.3], "completed", DR, changes={"eval-every": 5})
    run.write_summary({"status": "completed", "client_accuracy_mean": 0.4352})
    data.collect([tmp_path / "old", tmp_path / "new"], "abc", "a laptop")
    table = pages.published_beside_ours("feddr+", "table2-synergy", data.read("runs.csv"))
    head, row = ([cell.strip() for cell in table.splitlines()[i].split("|")] for i in (0, -1))
    found = dict(zip(head, row, strict=True))
    assert (found["published"], found["own images"]) == ("42.52", "43.52 (1 of 2 runs)")
    assert (found["difference"], found["mixed batches"]) == ("+1.00", "35.00 ± 7.07")


def test_shorter_runs_are_cells_of_their_own_without_a_comparison(
    data, pages, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    make_run(tmp_path / "short", [0.1, 0.2], "completed", scale=0.01)
    make_run(tmp_path / "whole", [0.1] * 190 + [0.4, 0.5] * 5, "completed")
    data.collect([tmp_path / "short", tmp_path / "whole"], "abc", "a laptop")
    lines = data.read("runs.csv")
    table = pages.published_beside_ours("fedntd", "table1-sharding", lines).splitlines()[-2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert [row[:6] for row in rows] == [
        ["fedavg cifar10 s=2", "40.14", "50.00", "+9.86", "50.00", "45.0 ± 5.3"],
        ["fedavg cifar10 s=2, rounds x 0.01", "40.14", "20.00", "-", "20.00", "-"],
    ]
    assert (rows[1][7], rows[1][-2]) == ("2", "0.59")
    short, whole = (pages.picture_name(pages.panel(line)) for line in lines)
    assert {short, whole} == {
        "evidence-fedntd-table1-sharding-cifar10-s2.png",
        "evidence-fedntd-table1-sharding-cifar10-s2-rounds-x-0.01.png",
    }


def test_a_run_with_changed_keys_is_a_cell_with_a_command(data, pages, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    make_run(tmp_path / "runs", [0.5] * 200, "completed")
    changes = {"precision": "bf16", "method": "feddr+", "eval-every": 5}
    make_run(tmp_path / "runs", [0.6] * 200, "completed", changes=changes)
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    plain, changed = sorted(data.read("runs.csv"), key=lambda line: line["final %"])
    assert " -c " not in plain["command"]
    keys = "eval-every=5 method='feddr+' precision='bf16'"
    assert f' -c "{keys}" --data-dir' in changed["command"]
    assert pages.panel(plain) == pages.panel(changed)  # curves of one figure
    table = pages.published_beside_ours("fedntd", "table1-sharding", [plain, changed])
    rows = [line.split(" | ") for line in table.splitlines()[-2:]]
    assert [(row[0], row[2]) for row in rows] == [
        ("| fedavg cifar10 s=2", "50.00"),
        ("| fedavg cifar10 s=2, method=feddr+, precision=bf16", "60.00"),
    ]


def test_a_run_resumed_with_rarer_evaluations_remains_a_run_of_its_cell(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "DATA", tmp_path / "docs")
    run = make_run(tmp_path / "runs", [0.5] * 200, "completed", changes={"eval-every": 5})
    config = run.path / "config.toml"
    text = config.read_text("utf-8")
    assert "eval-every = 5" in text
    config.write_text(text.replace("eval-every = 5", "eval-every = 20"), "utf-8")
    data.collect([tmp_path / "runs"], "abc", "a laptop")
    [line] = data.read("runs.csv")
    assert line["cell"] == "fedavg cifar10 s=2"
    assert ' -c "eval-every=5" --data-dir' in line["command"]


def test_the_pages_have_the_tables_and_pictures_of_the_data(data, pages):
    runs = [line for line in data.read("runs.csv") if line["paper"]]
    assert runs
    for page in pages.PAGES:
        text = page.read_text("utf-8")
        assert pages.filled(text, runs) == text, "run python benchmarks/evidence.py write"
    page = pages.PAGES[0].read_text("utf-8")
    for line in runs:
        assert f"<!-- evidence: {line['paper']} {line['table']} -->" in page
        assert pages.picture_name(pages.panel(line)) in page
    for picture in re.findall(r"images/(evidence-[^)]+)\)", page):
        assert (pages.IMAGES / picture).is_file()


def test_every_run_has_its_rounds(data):
    last = {line["run"]: line for line in data.read("rounds.csv")}
    for line in data.read("runs.csv"):
        assert last[line["run"]]["accuracy %"] == line["final %"]
