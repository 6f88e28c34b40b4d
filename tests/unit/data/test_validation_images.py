"""Validation images: a part of the training images in the place of the test images."""

import numpy as np
import pytest
from in_process import settings, train_one
from typer.testing import CliRunner

from fedapp.cli.app import app
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.interface.runs import load_run
from fedapp.results.comparison.groups import all_comparable, group_runs
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.run_data import load_partition


@pytest.mark.parametrize("kind", ["iid", "stratified", "shards", "lda", "unbalanced"])
def test_they_are_a_share_of_each_class_that_nobody_trains_on(kind):
    data, parts = load_partition(parse_config(settings(partition=kind, validation_share=0.2)))
    whole, _ = load_partition(parse_config(settings(partition=kind)))
    validation, trained = parts.global_test_set(), np.concatenate(parts.train)
    assert not set(validation) & set(trained)
    assert sorted([*validation, *trained]) == list(range(len(whole.train_labels)))
    everyone = np.bincount(whole.train_labels)
    assert np.bincount(data.test_labels[validation]) == pytest.approx(everyone / 5, abs=1)
    assert set(np.concatenate(parts.test)) <= set(validation)
    assert data.test_images is data.train_images  # not copied
    _, other = load_partition(parse_config(settings(partition=kind, validation_share=0.2, seed=3)))
    assert other.global_test_set().tolist() == validation.tolist()


def test_they_are_not_long_tailed():
    keys = settings(partition="iid", validation_share=0.5, imbalance_factor=50)
    data, parts = load_partition(parse_config(keys))
    assert np.bincount(data.test_labels[parts.global_test_set()]).min() > 60
    assert np.bincount(data.train_labels[np.concatenate(parts.train)])[-1] < 5


def test_a_run_is_tested_on_them_and_says_so(tmp_path):
    run = train_one(tmp_path, num_rounds=2, partition="iid", validation_share=0.2)
    data = ProcessContext(parse_config(run.config())).data
    images = data.dataset.train_images[data.test_members()]
    assert run.summary()["accuracy_of"] == "global model, validation images"
    loaded = load_run(run.path)
    labels = [data.dataset.classes[label] for label in data.test_labels()]
    guesses = [guess.label for guess in loaded.classify(images)]
    hits = [guess == label for guess, label in zip(guesses, labels, strict=True)]
    assert np.mean(hits) == pytest.approx(run.rounds()[-1]["accuracy"])
    own, published = loaded.test(), loaded.test(dataset="digits")
    assert own.accuracy == run.rounds()[-1]["accuracy"]
    assert (own.tested_on, own.images) == ("the run's validation images (digits)", len(images))
    assert published.images == 359
    usual = train_one(tmp_path / "usual", num_rounds=2, partition="iid")
    assert not all_comparable(group_runs([run, usual]))


@pytest.mark.parametrize("partition", ["pathological", "dirichlet"])
def test_pooled_images_have_none(partition):
    with pytest.raises(UserError, match=r"'validation-share' is 0.1, but it chooses among"):
        parse_config(settings(partition=partition, validation_share=0.1))


def test_a_split_with_them_is_not_saved(tmp_path):
    keys = "partition='iid' validation-share=0.1"
    asked = ["partition", "-c", keys, "--save", str(tmp_path / "split.json")]
    assert "set validation-share=0" in str(CliRunner().invoke(app, asked).exception)
    assert not list(tmp_path.iterdir())
