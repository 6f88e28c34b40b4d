"""Every published number: as printed, named once, and runnable or refused for a known reason."""

import json
import string
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_cells import cell
from typer.testing import CliRunner

from clients.training.objective import REGULARISERS
from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.datasets import DATASETS
from fedapp.experiments.papers.cells import cells_of, configuration, select
from fedapp.experiments.papers.metrics import PAPER_METRICS
from fedapp.experiments.papers.protocol import (
    MODELS,
    SAME_METHOD,
    CannotRunError,
    Published,
    Reason,
)
from fedapp.experiments.papers.tables import FILES, all_papers, find_paper
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES
from fedapp.models.groups import MODEL_GROUPS

ROWS = {"feddr+": 786, "fedfn": 1304, "fedntd": 602, "feddor": 292}

# Everything that can be in the way of a row whose method, data set, model and metric are there.
METRICS = {name.removeprefix("best ").partition(" ")[0] for name in PAPER_METRICS}
MODEL_NAMES = {*BACKBONES, *(name.lower() for name in MODEL_GROUPS)}
SETTINGS_THAT_CANNOT_RUN = {
    "heads of different shapes cannot be averaged",
    "weight of an added regulariser",
    "no key for lambda",
    "no learning rate stated",
    "clients not stated",
    "participation not stated",
    "rounds not stated",
    "batch size not stated",
    "momentum not stated",
    "augmentation not stated",
}


@pytest.fixture(scope="module")
def cells():
    return [
        cell for paper in all_papers() for table in paper.tables for cell in cells_of(paper, table)
    ]


def exists(published: Published) -> bool:
    """Method, data set, model and metric of a row are there, found without the code under test."""
    name = SAME_METHOD.get(str(published.row.method), str(published.row.method))
    combined = any(name == f"{base}+{added}" for base in METHODS for added in REGULARISERS)
    setting = published.setting
    return (
        (name in METHODS or combined)
        and setting.get("dataset") in DATASETS
        and MODELS.get(setting.get("model"), setting.get("model")) in MODEL_NAMES
        and published.row.metric in METRICS
        and "128" not in str(published.row.column.get("layer"))
    )


def test_every_number_of_every_table_is_there():
    assert {
        paper.name: sum(len(table.rows) for table in paper.tables) for paper in all_papers()
    } == ROWS


@pytest.mark.parametrize(
    ("paper", "table", "words", "mean"),
    [
        ("feddr+", "table3-sharding", "fedavg cifar100 s=10", 36.6),
        ("feddr+", "table3-sharding", "feddr+ cifar100 s=10", 48.2),
        ("feddr+", "table3-lda", "fedetf imagenet100 alpha=0.1", 69.0),
        ("feddr+", "table15-iid", "dr cifar100 iid", 51.5),
        ("feddr+", "table17-client-count", "feddr+ clients=500", 43.3),
        ("feddr+", "table5-pfl", "feddr+-ft s=10", 83.1),
        ("fedfn", "table2-modules", "fedfn cifar10 s=2", 76.5),
        ("fedfn", "table2-modules", "scaffold+fn cifar100 s=10", 49.4),
        ("fedntd", "table1-sharding", "fednova cifar10 s=10", 67.0),
        ("fedntd", "table1-lda-forgetting", "fedntd cifar10 alpha=0.1", 0.42),
    ],
)
def test_the_anchors_of_the_method_specification_are_found_by_their_words(
    paper, table, words, mean
):
    assert cell(paper, table, words).row.mean == pytest.approx(mean, abs=0.051)


def test_doubts_and_oddities_are_kept():
    assert all(paper.doubts and paper.oddities for paper in all_papers())
    rows = [row for paper in all_papers() for table in paper.tables for row in table.rows]
    assert sum(row.note.startswith("doubt") for row in rows) > 20
    assert [row.mean for row in rows if row.raw] == [None]
    assert sum(row.failed for row in rows) > 50


def test_names_are_unique_in_a_table():
    for paper in all_papers():
        for table in paper.tables:
            names = [cell.name for cell in cells_of(paper, table)]
            assert len(set(names)) == len(names), table.id


def test_every_cell_builds_or_says_why_not(cells):
    assert len(cells) == sum(ROWS.values())
    for each in cells:
        if each.config is None:
            assert each.reason in set(Reason) - {Reason.DATA}, each
            assert each.reason is not Reason.REFUSED or each.row.mean is None  # printed as "-"
            assert each.detail
        else:
            assert each.reason is None
            parse_config(each.config)


def test_every_row_whose_method_data_model_and_metric_exist_builds(cells):
    rows = [
        Published(paper, table, row)
        for paper in all_papers()
        for table in paper.tables
        for row in table.rows
    ]
    held_back = set()
    for published, built in zip(rows, cells, strict=True):
        if built.config is not None:
            assert exists(published), built.name
        elif exists(published):
            if built.reason is Reason.NO_NUMBER:
                assert built.row.mean is None, built
                assert not built.row.failed
            elif built.reason is not Reason.REFUSED:
                assert built.reason in (Reason.SETTING, Reason.PARTITION), built
                held_back.add(built.detail)
        else:
            assert built.reason in (
                Reason.SETTING_ROW, Reason.METHOD, Reason.DATASET, Reason.MODEL, Reason.METRIC
            ), built  # fmt: skip
    assert held_back <= SETTINGS_THAT_CANNOT_RUN | {"pathological", "dirichlet"}


def test_reasons_and_cells_that_build_add_up(cells):
    counted = Counter("built" if each.config is not None else each.reason for each in cells)
    assert counted["built"] >= 2735
    kd = [each.config for each in cells if (each.config or {}).get("kd-ntd-lambda") == 0]
    assert {config["method"] for config in kd} == {"kd-ntd"}  # FedNTD's table 12 starts at KD
    assert counted[Reason.SETTING_ROW] == 138  # 84 of them tuned weights
    assert counted[Reason.NO_NUMBER] == 13
    assert sum(counted.values()) == len(cells)
    detail = Counter(each.detail for each in cells if each.reason is Reason.METHOD)
    assert not set(detail) & set(METHODS)


def test_a_missing_method_is_named_before_anything_else():
    paper = find_paper("feddor")
    found = cell("feddor", "table1-main", "fedproto tiny-imagenet alpha=0.1")
    nowhere = replace(found.row, method="fednone", column={**found.row.column, "dataset": "none"})
    for row, reason in (
        (nowhere, Reason.METHOD),
        (replace(nowhere, method="fedproto"), Reason.DATASET),
    ):
        with pytest.raises(CannotRunError) as missing:
            configuration(Published(paper, paper.table("table1-main"), row))
        assert missing.value.reason is reason


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: find_paper("feddr"), "did you mean 'feddr\\+'"),
        (lambda: find_paper("fedntd").table("table1-shard"), "table1-sharding"),
        (lambda: cell("fedntd", "table1-lda", "fedavg imagenet"), "did you mean 'fedavg"),
        (lambda: cell("fedntd", "table1-lda", "fedavg"), "one of 7; add words"),
        (lambda: cell("fedntd", "table1-lda", "§"), "does not exist; there is"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(call, words):
    with pytest.raises(UserError, match=words):
        call()


@settings(deadline=None)
@given(st.data())
def test_a_cell_is_found_by_its_words_in_any_order_and_case(data):
    paper = find_paper(data.draw(st.sampled_from(sorted(FILES))))
    table = data.draw(st.sampled_from(paper.tables))
    every = cells_of(paper, table) if len(table.rows) < 60 else cells_of(paper, table)[:60]
    wanted = data.draw(st.sampled_from(every))
    words = data.draw(st.permutations(wanted.name.upper().split()))
    assert select(every, " ".join(words)) == wanted


@given(st.text(string.ascii_letters, min_size=30))
def test_no_text_is_taken_for_a_paper(name):
    with pytest.raises(UserError, match="does not exist"):
        find_paper(name)


def test_the_command_lists_tables_and_numbers():
    tables = json.loads(CliRunner().invoke(app, ["papers", "--json"]).stdout)
    assert sum(row["numbers"] for row in tables) == sum(ROWS.values())
    asked = ["papers", "feddr+", "table3-sharding", "--json"]
    numbers = json.loads(CliRunner().invoke(app, asked).stdout)
    assert len(numbers) == 96
    (ours,) = [row for row in numbers if row["cell"] == "feddr+ cifar100 s=10"]
    assert ours["config"]["lr"] == 5.0
    assert ours["mean"] == pytest.approx(48.2, abs=0.1)
    assert "±: spread over" in CliRunner().invoke(app, [*asked[:2], "table5-pfl"]).stdout
