"""The settings of published numbers: each paper's own, and a note for what it leaves out."""

import pytest
from paper_cells import cell


def test_a_cell_has_the_published_setting():
    keys = cell("feddr+", "table3-lda", "feddr+ cifar100 alpha=0.1").config
    assert keys == {
        "method": "feddr+", "dataset": "cifar100", "model": "mobilenet", "partition": "lda",
        "alpha": 0.1, "num-clients": 100, "participation": 0.1, "num-rounds": 320,
        "local-epochs": 3, "batch-size": 50, "momentum": 0.9, "weight-decay": 1e-5,
        "lr-schedule": "step", "augmentation": "crop flip", "test-batch-size": 50,
        "lr": 5.0, "beta": 0.9,
    }  # fmt: skip


def test_the_same_method_takes_each_papers_own_parameters():
    ntd = cell("fedntd", "table1-lda", "fedntd cifar10 alpha=0.05").config
    dr = cell("feddr+", "table3-lda", "fedntd cifar10 alpha=0.1").config
    assert (ntd["tau"], ntd["beta"], ntd["lr-schedule"]) == (1.0, 1.0, "exponential")
    assert (dr["tau"], dr["beta"], dr["lr-schedule"]) == (3.0, 1.0, "step")
    assert cell("fedntd", "table1-lda", "fedprox mnist alpha=0.1").config["mu"] == 0.1
    assert cell("feddr+", "table3-lda", "fedprox cifar10 alpha=0.1").config["mu"] == 0.001


def test_an_added_regulariser_has_the_tuned_beta_of_its_own_cell():
    tuned = cell("feddr+", "table2-synergy", "fedavg+ntd cifar100 alpha=0.1").config
    fixed = cell("feddr+", "table13-synergy-beta0.9", "fedavg+ntd cifar100 alpha=0.1").config
    assert (tuned["method"], tuned["regulariser"], tuned["beta"]) == ("fedavg", "ntd", 0.99)
    assert fixed["beta"] == 0.9
    assert "beta" not in cell("feddr+", "table2-synergy", "fedavg cifar100 s=10").config


@pytest.mark.parametrize(
    ("paper", "table", "words", "key", "value"),
    [
        ("feddr+", "table3-lda", "fedexp cifar10 alpha=0.1", "fedexp-epsilon", 0.001),
        ("fedfn", "appendix-table14-fedfr-cifar100", "fedfr mu=0.001", "mu", 0.001),
        ("fedfn", "appendix-table11-logit-scale", "spherefed-ce tau=15", "tau", 15.0),
    ],
)
def test_a_methods_own_parameters_reach_their_keys(paper, table, words, key, value):
    assert cell(paper, table, words).config[key] == value


def test_forgetting_is_measured_where_it_was_published():
    found = cell("fedntd", "table1-lda-forgetting", "fedntd cifar10 alpha=0.1")
    assert found.config["analyses"] == "forgetting"
    assert "analyses" not in cell("fedntd", "table1-lda", "fedntd cifar10 alpha=0.1").config


def test_the_global_models_of_a_personalised_table_can_run():
    found = cell("fedfn", "appendix-table9-pfl", "fedfn cifar100 s=10")
    assert (found.row.metric, found.config["lr"]) == ("accuracy_percent", 0.5)


def test_what_a_paper_leaves_out_is_a_note_and_not_a_silent_default():
    notes = " ".join(cell("fedfn", "table1-fedavg-fedfn", "fedfn cifar10 s=2").notes)
    assert "batch size: not stated, taken as 50" in notes
    assert (
        "lr: not stated for dr, taken from feddr+"
        in cell("feddr+", "table15-iid", "dr cifar100 iid").notes
    )
    assert (
        cell("fedfn", "table1-fedavg-fedfn", "fedavg cifar10 s=2").config["partition"] == "shards"
    )


def test_both_arms_of_the_pre_trained_comparison_have_one_architecture():
    for weights, arm in (("imagenet", "True"), ("", "False")):
        config = cell("fedfn", "table3-resnet18", f"fedavg cifar10 s=2 pretrained={arm}").config
        assert config is not None
        assert config["model"] == "resnet18-imagenet-stem"
        assert config.get("initial-model", "") == weights
        assert config["bn"] == "running"
        assert "test-batch-size" not in config  # it would have no effect


def test_iid_is_dealt_as_the_paper_deals_it():
    assert cell("feddr+", "table15-iid", "fedavg iid").config["partition"] == "stratified"


def test_methods_with_models_of_their_own_train_as_long_as_their_paper_says():
    for method in ("feddor", "fedproto", "fedkd"):
        config = cell("feddor", "table1-main", f"{method} cifar100 alpha=0.1").config
        assert (config["num-rounds"], config["local-epochs"]) == (100, 1)
        assert (config["model-group"], config["feature-dim"]) == ("MHMG8", 512)


def test_feddors_tables_have_the_loader_and_prototypes_of_fedorgps_code():
    found = {name: cell("feddor", "table1-main", f"{name} cifar100 alpha=0.1") for name in
             ("feddor", "fedproto", "fedtgp")}  # fmt: skip
    assert all(one.config["local-shuffle"] is False for one in found.values())
    assert all("batches: the same in every round" in " ".join(one.notes) for one in found.values())
    collected = {name: one.config.get("proto-collect", "after") for name, one in found.items()}
    assert collected == {"feddor": "after", "fedproto": "during", "fedtgp": "after"}
    assert found["fedproto"].config["fedproto-weighting"] == "uniform"
