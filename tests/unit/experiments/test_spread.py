"""What stands behind a published ±: seeds, or the clients of a run."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.experiments.papers.cells import cells_of
from fedapp.experiments.papers.code_bases import FEDDR_BY_FEDNTD
from fedapp.experiments.papers.plan import Request, resolved, runs_of
from fedapp.experiments.papers.reproduce import result
from fedapp.experiments.papers.tables import find_paper
from fedapp.results.run_directory import RunDirectory


def test_a_spread_over_clients_is_compared_with_one_over_clients(tmp_path):
    paper = find_paper("feddr+")
    able = [c for c in cells_of(paper, paper.table("table14-pfl-finetune-loss")) if c.config]
    assert able
    assert all(c.spread_of_clients and "±: over the clients of a run" in c.notes for c in able)
    runs = runs_of(able[0], Request(tmp_path, seeds=(0, 1, 2)))
    for run, accuracy, deviation in zip(runs, (0.4, 0.5, 0.9), (0.02, 0.04, 0.06), strict=True):
        made = RunDirectory.create(tmp_path, run.name, resolved(run).flat())
        made.write_summary(
            {"status": "completed", "rounds": 1, "seconds": 1.0, "device": "cpu",
             "accuracy_final": accuracy, "client_accuracy_mean": accuracy,
             "client_accuracy_std": deviation}
        )  # fmt: skip
    row = result(able[0], runs)
    assert (row["mean"], row["std"]) == (pytest.approx(60.0), pytest.approx(4.0))
    over_seeds = result(replace(able[0], spread_of_clients=False), runs)
    assert over_seeds["std"] == pytest.approx(26.4575, rel=1e-4)  # of 40, 50 and 90


def test_fedntds_spread_is_said_to_be_over_less_than_ours(tmp_path):
    """Its code draws one partition for all seeds; ours differs from seed to seed."""
    able = [cell for cell in _cells("fedntd") if cell.config]
    assert len(able) > 400
    for cell in able:
        assert any(note.startswith("published ±: over initial weights") for note in cell.notes)
        assert "partition-seed" not in cell.config
    row = result(able[0], runs_of(able[0], Request(tmp_path)))
    assert "one partition for all seeds" in row["note"]

    def printed(*words: str) -> str:
        return " ".join(CliRunner().invoke(app, ["papers", *words]).stdout.split())

    assert "±: over initial weights and batches alone" in printed("fedntd", "table7-lda")
    assert "±" not in printed("fedntd", "table1-lda").rpartition("Global accuracy under LDA")[2]
    assert "initial weights" not in printed("fedntd", "table13-fedalign")
    by_fedntd = {c.table for c in _cells("feddr+") if any("initial weights" in n for n in c.notes)}
    assert {"table3-sharding", "table3-lda"} <= by_fedntd <= FEDDR_BY_FEDNTD
    assert all("rounding" in " ".join(c.notes) for c in _cells("feddor") if c.config)


def test_fedntds_accuracies_are_said_to_be_of_augmented_test_images():
    """docs/evidence.md shows it; another paper's tables with the same code are left alone."""

    def said(cell) -> bool:
        return any("augmented test images" in note for note in cell.notes)

    assert all(said(cell) for cell in _cells("fedntd") if cell.config)
    assert not any(said(cell) for cell in _cells("feddr+"))
    printed = CliRunner().invoke(app, ["papers", "fedntd", "table1-sharding"]).stdout
    assert "augmented test images" in " ".join(printed.split())


def _cells(name: str) -> list:
    paper = find_paper(name)
    return [cell for table in paper.tables for cell in cells_of(paper, table)]
