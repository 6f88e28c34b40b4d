"""The plan of a table: which runs would start, with which keys, and which cells cannot run."""

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_cells import cell, copy_of

from fedapp.config.overrides import read_overrides
from fedapp.core.errors import UserError
from fedapp.experiments.papers import plan as planning
from fedapp.experiments.papers.cells import cells_of
from fedapp.experiments.papers.plan import (
    PlannedRun,
    Request,
    check_changes,
    plan_rows,
    runs_of,
    with_data,
)
from fedapp.experiments.papers.protocol import Reason
from fedapp.experiments.papers.tables import find_paper


@given(scale=st.floats(1e-4, 1.0))
def test_scale_multiplies_the_rounds_and_nothing_else(scale):
    full = PlannedRun(cell(), 0, Request(planning.Path("out")))
    scaled = PlannedRun(cell(), 0, Request(planning.Path("out"), scale=scale))
    assert scaled.overrides["num-rounds"] == max(1, round(200 * scale))
    changed = {key for key, value in scaled.overrides.items() if value != full.overrides[key]}
    assert changed <= {"num-rounds", "checkpoint-every", "run-name"}
    assert (scaled.name != full.name) == (scale != 1)
    assert scaled.overrides["checkpoint-every"] >= 1  # 0 would be none


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan")])
def test_a_scale_that_is_no_fraction_is_refused(scale, tmp_path):
    with pytest.raises(UserError, match="--scale"):
        Request(tmp_path, scale=scale)


def test_an_unknown_data_set_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UserError, match="did you mean 'images'"):
        Request(tmp_path, dataset_as="image")
    assert Request(tmp_path, dataset_as="hub:uoft-cs/cifar100").label().startswith("data from")


def test_changed_keys_make_a_run_of_its_own_and_are_stated():
    changes = {"precision": "bf16", "method": "feddr+"}
    published = PlannedRun(cell(), 0, Request(planning.Path("out")))
    changed = PlannedRun(cell(), 0, Request(planning.Path("out"), changes=changes))
    assert changed.overrides == published.overrides | changes | {"run-name": changed.name}
    assert changed.name == published.name.replace(
        "-seed0", "-with-method=feddr++precision=bf16-seed0"
    )
    assert changed.request.label() == "method=feddr+, precision=bf16"


def test_a_method_that_keeps_client_states_has_the_checkpoints_that_it_needs():
    request = Request(planning.Path("out"), changes={"method": "scaffold"})
    check_changes([cell()], request)
    assert PlannedRun(cell(), 0, request).overrides["checkpoint-every"] == 1


def test_a_key_with_an_option_of_its_own_cannot_be_changed(tmp_path):
    with pytest.raises(UserError, match="-c cannot name 'seed': use --seeds"):
        Request(tmp_path, changes={"seed": 1})


def test_a_change_is_checked_before_the_first_run(tmp_path):
    with pytest.raises(UserError, match="precision"):
        check_changes([cell()], Request(tmp_path, changes={"precision": "bf61"}))


def test_a_method_with_another_accuracy_than_the_cells_is_refused(tmp_path):
    sentence = "its accuracy is that of the personal models .*, but the cell .* global model"
    with pytest.raises(UserError, match=sentence):
        check_changes([cell()], Request(tmp_path, changes={"method": "fedavg-ft"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"finetune-epochs": 3}, "-c finetune-epochs=3"), ({"method": "fedgela"}, "-c method='fedge")],
)
def test_a_change_that_gives_clients_models_of_their_own_is_refused(tmp_path, changes, words):
    found = cell("feddr+", "table3-sharding", "feddr+ cifar100 s=10")
    sentence = f"{words}.*: clients would test models of their own, but the cell .* global model"
    with pytest.raises(UserError, match=sentence):
        check_changes([found], Request(tmp_path, changes={"lr": 0.1, **changes}))
    fedgela = cell("feddr+", "table3-sharding", "fedgela cifar100 s=10")
    check_changes([fedgela], Request(tmp_path, changes={"eval-every": 20}))


def test_the_measure_of_a_cell_stays_beside_those_of_the_request(tmp_path):
    found = cell("fedntd", "table1-sharding-forgetting", "fedavg cifar10 s=2")
    run = PlannedRun(found, 0, Request(tmp_path, changes={"analyses": "norms forgetting"}))
    assert run.overrides["analyses"] == "forgetting norms"


def test_every_run_of_a_table_has_a_plain_name_of_its_own(tmp_path):
    paper = find_paper("fedfn")
    cells = [
        each for table in paper.tables for each in cells_of(paper, table) if each.config is not None
    ]
    names = [run.name for each in cells for run in runs_of(each, Request(tmp_path))]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.+=-]+", name) for name in names)


def test_the_printed_command_is_the_run(tmp_path):
    run = PlannedRun(cell(), 1, Request(tmp_path / "it's here"))
    program, command, option, pairs = shlex.split(run.command())
    assert (program, command, option) == ("fedapp", "run", "-c")
    assert read_overrides([pairs]) == run.overrides


def test_images_are_rounds_times_cohort_times_epochs(tmp_path):
    run = PlannedRun(cell(), 0, Request(tmp_path))
    assert run.images == 200 * 5 * 5000
    (row,) = plan_rows([cell()], Request(tmp_path, seeds=(0, 1)), images_per_second=1000)
    assert (row["runs"], row["million images"], row["hours"]) == (2, 10.0, round(1e4 / 3600, 2))


@pytest.mark.parametrize(
    ("changes", "epochs"), [({"local-epochs": "auto"}, 5), ({"local-epochs": 2}, 2)]
)
def test_images_are_those_of_the_changed_keys(tmp_path, changes, epochs):
    request = Request(tmp_path, changes=changes)
    check_changes([cell()], request)
    assert PlannedRun(cell(), 0, request).images == 200 * epochs * 5000


def test_seeds_are_the_papers_unless_asked_otherwise(tmp_path):
    published = cell("feddr+", "table3-sharding", "feddr+ cifar100 s=10")
    assert len(runs_of(published, Request(tmp_path))) == 3
    assert [run.seed for run in runs_of(published, Request(tmp_path, seeds=(0,)))] == [0]
    assert (
        len(runs_of(cell("fedfn", "table2-modules", "fedavg cifar10 s=2"), Request(tmp_path))) == 1
    )


def test_cells_without_data_are_marked_with_what_is_missing(tmp_path):
    (marked,) = with_data([cell()], Request(tmp_path, data_dir=str(tmp_path)))
    assert (marked.config, marked.reason) == (None, Reason.DATA)
    assert str(tmp_path) in marked.detail


def test_another_copy_stands_for_its_own_data_set_only(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    paper = find_paper("fedntd")
    cells = with_data(
        cells_of(paper, paper.table("table1-sharding")), Request(tmp_path, dataset_as="images")
    )
    able = {each.row.column["dataset"] for each in cells if each.config is not None}
    assert able == {"cifar10"}
    details = " ".join(each.detail for each in cells if each.reason is Reason.DATA)
    assert "cifar100 has 100 classes" in details
    assert "mnist has 10 classes, 28 pixels, 60000 training images" in details


def test_a_copy_that_fits_two_data_sets_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "load_dataset", lambda name, folder, download: copy_of(name))
    monkeypatch.setitem(planning.DATASETS, "mnist", planning.DATASETS["cifar10"])
    with pytest.raises(UserError, match="cifar10 and mnist; choose some with --cell"):
        with_data([cell(), cell(words="fedavg mnist s=2")], Request(tmp_path, dataset_as="images"))


def test_moon_has_the_weight_of_the_released_configuration_in_fedntds_tables():
    found = cell(words="moon cifar10 s=2")
    assert (found.config["mu"], found.config["tau"]) == (0.1, 0.5)
    assert any("the paper prints" in note for note in found.notes)
    other = cell("feddr+", "table3-sharding", "moon cifar100 s=10")
    assert other.config["mu"] == 1.0
