"""Run keys of published settings where a paper is incomplete or differs from its code."""

from pathlib import Path

import pytest
from paper_cells import cell
from reference import HETEROGENEOUS

from fedapp.config.resolve import parse_config
from fedapp.experiments.papers.cells import cells_of
from fedapp.experiments.papers.metrics import PAPER_METRICS
from fedapp.experiments.papers.plan import PlannedRun, Request
from fedapp.experiments.papers.tables import find_paper


@pytest.mark.parametrize(
    ("method", "key", "value", "words"),
    [
        ("fednova", "fednova-correction", "own", "fednova: correction by the client's own"),
        ("fedcurv", "fedcurv-accumulate", True, "fedcurv: penalty by the latest importances"),
    ],
)
@pytest.mark.parametrize("table", ["table1-sharding", "table7-lda"])
def test_fedntds_tables_have_the_methods_of_its_authors_code(table, method, key, value, words):
    split = "s=5" if table.endswith("sharding") else "alpha=0.1"
    published, plain = (cell("fedntd", table, f"{m} cifar10 {split}") for m in (method, "fedavg"))
    assert published.config[key] == value
    assert any(note.startswith(words) for note in published.notes)
    overrides = PlannedRun(published, 0, Request(Path("runs"))).overrides
    assert overrides["checkpoint-every"] == 1  # clients keep states, which follow no earlier round
    assert key not in plain.config
    assert not any(note.startswith(words) for note in plain.notes)


@pytest.mark.parametrize(
    ("paper", "table", "words"),
    [
        ("feddr+", "table3-sharding", "fedexp cifar100 s=10"),
        ("fedfn", "table2-modules", "fedexp cifar10 s=2"),
        ("fedfn", "table2-modules", "fedexp+fn cifar100 s=10"),
    ],
)
def test_fedexp_goes_as_far_as_in_the_code_of_its_published_numbers(paper, table, words):
    published = cell(paper, table, words)
    assert (published.config["fedexp-step"], published.config["fedexp-evaluate"]) == (
        "feddr+",
        "last",
    )
    assert any("step length of at most 1" in note for note in published.notes)


def test_the_measure_of_a_cell_decides_which_value_of_a_run_it_reads():
    summary = {
        "accuracy_final": 0.5, "accuracy_best": 0.6,
        "measures": {"weight-alignment/last_hidden": 0.7},
    }  # fmt: skip
    read = {
        name: PAPER_METRICS[cell(paper, table, words).measure].read(summary)
        for name, paper, table, words in (
            ("last round", "fedntd", "table1-sharding", "fedavg cifar10 s=2"),
            ("best round", "feddor", "table1-main", "feddor cifar10 classes=2"),
            ("personal", "feddr+", "table5-pfl", "fedper cifar100 s=10"),
            (
                "neurons", "fedntd", "table2-alignment",
                "fedavg cifar10 s=2 layer=linear_1-(512) compare=previous-global-vs-local",
            ),
        )
    }  # fmt: skip
    assert read == {"last round": 50, "best round": 60, "personal": 50, "neurons": 0.7}


def test_the_spread_of_best_rounds_is_that_of_all_runs():
    expected = HETEROGENEOUS["metric"]
    spread = PAPER_METRICS["best accuracy_percent"].spread
    assert spread(expected["runs_best"]) == pytest.approx(expected["std_ddof0"])
    assert PAPER_METRICS["accuracy_percent"].spread([40.0, 42.0, 44.0]) == pytest.approx(2.0)


def test_fine_tuned_rows_take_their_papers_protocol_and_rates():
    ours = cell("fedfn", "appendix-table10-finetune-lr", "fedbabu-ft s=10 finetune-lr-factor=0.1")
    assert (ours.config["lr"], ours.config["finetune-lr"]) == (0.1, pytest.approx(0.01))
    assert ours.config["finetune-protocol"] == "fedfn"
    loss = cell("feddr+", "table14-pfl-finetune-loss", "dr-ft s=10 finetune-loss=dr+")
    assert (loss.config["finetune-loss"], loss.config["lr"]) == ("dr+", 5.0)
    before = cell("feddr+", "table14-pfl-finetune-loss", "dr alpha=0.1")
    assert before.config["client-eval-every"] == 320
    assert PAPER_METRICS[before.measure].read({"client_accuracy_mean": 0.25}) == 25


def test_values_that_papers_leave_open_are_set_and_noted():
    alone = cell("feddr+", "table5-pfl", "local-ce cifar100 s=10")
    assert alone.config["num-rounds"] == 160
    assert any("alone" in note for note in alone.notes)
    ours = cell("feddor", "table2-model-heterogeneity", "feddor cifar100 model=mhmg9")
    assert (ours.config["model-group"], ours.config["num-clients"]) == ("MHMG9", 20)
    assert ours.config["augmentation"] == "none"


def test_models_are_averaged_as_the_code_did_that_made_the_table():
    """FedBABU's code (plain mean) made FedDr+'s tables except 3 and 4, FedFN's tables 9 and 10."""
    by_size = {"table3-sharding", "table3-lda", "table4-elapsed", "arxiv-table9-elapsed"}
    personal = {"appendix-table9-pfl", "appendix-table10-finetune-lr"}
    for paper in (find_paper("feddr+"), find_paper("fedfn"), find_paper("fedntd")):
        for table in paper.tables:
            weights = {
                each.config.get("weights")
                for each in cells_of(paper, table)
                if each.config and not each.config["method"].startswith("local")
            }
            uniform = table.id in personal or (paper.name == "feddr+" and table.id not in by_size)
            assert weights <= {"uniform" if uniform else None}, table.id
    for table in ("table2-synergy", "table11-synergy", "table13-synergy-beta0.9"):
        base = cell("feddr+", table, "fedavg+ntd cifar100 alpha=0.1")
        assert base.config["weights"] == "uniform"
        assert "mean of models: uniform, as in the FedBABU authors' code" in base.notes


def test_cinic_10_is_cropped_as_in_the_code_that_made_its_numbers():
    cinic = cell("fedntd", "table7-lda", "fedntd cinic10 alpha=0.1")
    assert cinic.config["augmentation"] == "crop-reflect flip"
    assert any("padded by reflection" in note for note in cinic.notes)
    other = cell("fedntd", "table7-lda", "fedntd cifar10 alpha=0.1")
    assert other.config["augmentation"] == "crop flip cutout"
    assert not any("reflection" in note for note in other.notes)


def test_clients_own_models_are_not_evaluated_in_every_round():
    """All of FedRep's clients train before an evaluation: ten times as many as in a round."""
    for name, every in (("fedrep", 80), ("ditto", 80), ("local-ce", 20), ("fedavg-ft", None)):
        assert cell("feddr+", "table5-pfl", f"{name} s=10").config.get("eval-every") == every


@pytest.mark.parametrize(
    ("paper", "table", "words", "images"),
    [
        ("feddr+", "table4-elapsed", "feddr+ s=10", 50),  # FedNTD's code, no accuracy
        ("feddr+", "table3-sharding", "feddr+ cifar100 s=10", 128),  # by its accuracies
        ("feddr+", "table2-synergy", "dr alpha=0.1", 128),  # FedBABU's code
        ("fedfn", "table2-modules", "fedfn cifar100 s=10", 128),
        ("fedfn", "appendix-table10-finetune-lr", "fedbabu-ft s=10 finetune-lr-factor=0.1", 128),
    ],
)
def test_test_batches_are_those_of_the_tables_code_base(paper, table, words, images):
    assert cell(paper, table, words).config["test-batch-size"] == images


@pytest.mark.parametrize(
    ("paper", "table", "words", "own"),
    [
        ("feddr+", "table3-sharding", "fedavg cifar100 s=10", True),
        ("fedfn", "table2-modules", "fedfn cifar100 s=10", True),
        ("feddr+", "table3-sharding", "fedavg cifar10 s=2", False),  # no BatchNorm
        ("feddr+", "table4-elapsed", "fedavg s=10", False),  # seconds
        ("fedfn", "table3-resnet18", "fedavg s=2 pretrained=False", False),  # running statistics
        ("feddr+", "table3-sharding", "fedgela cifar100 s=10", False),  # clients scale its logits
        ("feddr+", "table3-lda", "feddr+ cifar100 alpha=0.1", False),  # as table 14 shows
        ("fedntd", "table1-sharding", "fedavg cifar10 s=2", False),
    ],
)
def test_batchnorm_is_tested_on_each_clients_own_images_as_published(paper, table, words, own):
    """Their two papers' accuracies fit those of one batch per client (docs/evidence.md)."""
    published = cell(paper, table, words)
    asked = published.config.get("client-eval-every") == published.config["num-rounds"]
    assert asked is own
    summary = {"accuracy_final": 0.4, "client_accuracy_mean": 0.3, "seconds": 1, "rounds": 1}
    assert (PAPER_METRICS[published.measure].read(summary) == 30) is own


def test_networks_without_batchnorm_need_no_test_batches():
    assert "test-batch-size" not in cell("fedntd", "table1-sharding", "fedavg mnist s=2").config


def test_centralised_training_takes_its_own_row_and_notes_missing_settings():
    published = cell("fedfn", "appendix-table12-spherefed-reproduction", "centralized")
    keys = parse_config(published.config)
    assert (keys.method, keys.model, keys.num_clients) == ("centralised", "mobilenetv2", 1)
    assert (keys.num_rounds, keys.local_epochs, keys.lr) == (500, 1, 0.1)
    assert keys.lr_schedule == "cosine"
    assert sum("not stated" in note for note in published.notes) == 5
    beside = cell("fedfn", "appendix-table12-spherefed-reproduction", "fedfn alpha=0.1 lr=0.3")
    assert beside.detail == "clients not stated"
