"""Feature skew: each client's images are changed, for training and for its own tests."""

import numpy as np
import pytest
import torch
from in_process import settings, train_one

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.feature_skew import KINDS, FeatureSkew
from fedapp.runtime.process.context import close_process, open_process
from fedapp.runtime.process.run_data import load_partition, some_images

GREY = np.full((60, 8, 8, 1), 128, np.uint8)
NUMBERED = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
ROWS = np.array([2, 0])


def seen(kind, client, images=NUMBERED, rows=ROWS, split="train", level=0.5, seed=0):
    skew = FeatureSkew(kind, level, num_clients=5, seed=seed)
    return skew.view(images, client, split)[rows]


@pytest.mark.parametrize("client", range(5))
def test_clients_images_are_turned_by_quarter_turns(client):
    expected = torch.rot90(torch.from_numpy(NUMBERED[ROWS]), client, (1, 2)).numpy()
    assert (seen("rotation", client) == expected).all()


def test_noise_grows_from_none_at_the_first_client_to_the_level_at_the_last():
    rows = np.arange(60)
    deviations = [seen("noise", k, GREY, rows, level=0.2).std() / 255 for k in range(5)]
    assert deviations == pytest.approx([0, 0.05, 0.1, 0.15, 0.2], rel=0.05)
    assert seen("noise", 4, GREY, rows, level=0.2).mean() == pytest.approx(128, abs=2)


def test_an_image_keeps_its_noise_and_no_two_images_share_it():
    both, alone = seen("noise", 3, GREY, np.array([7, 9])), seen("noise", 3, GREY, np.array([9]))
    assert (both[1] == alone[0]).all()
    others = [
        both[0],
        seen("noise", 3, GREY, np.array([9]), split="test")[0],
        seen("noise", 3, GREY, np.array([9]), seed=1)[0],
        seen("noise", 4, GREY, np.array([9]))[0],
    ]
    assert all((other != alone[0]).mean() > 0.9 for other in others)


def test_brightness_is_a_factor_between_one_minus_and_one_plus_the_level():
    means = [seen("brightness", k, GREY, level=0.5).mean() for k in range(5)]
    assert means == [64, 96, 128, 160, 192]
    assert seen("brightness", 4, GREY, level=1.0).max() == 255


def data_of(**changes):
    return open_process(settings(partition="iid", augmentation="none", **changes), {}).data


def pixels(batches, data):
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    images = torch.cat([images for images, _ in batches])
    return (images * std + mean).mul(255).permute(0, 2, 3, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_trains_and_is_tested_on_its_own_view(kind):
    data, client = data_of(feature_skew=kind), 5
    plain, parts, own = data.dataset, data.partition, data.client(client)
    skew = FeatureSkew(kind, 0.5, len(parts.train), seed=0)
    for source, members, split, batches in (
        (plain.train_images, parts.train[client], "train", own.examples(1)),
        (plain.test_images, parts.test[client], "test", own.test()),
    ):
        expected = torch.from_numpy(skew.view(source, client, split)[members]).float()
        assert torch.allclose(pixels(batches, plain), expected, atol=1e-3)
        assert not torch.allclose(expected, torch.from_numpy(source[members]).float())
    close_process()


def test_training_batches_are_skewed_and_the_global_test_set_is_not():
    plain, skewed = data_of(), data_of(feature_skew="rotation")
    for client in (0, 6):
        before, after = (next(iter(d.client(client).training(1)())) for d in (plain, skewed))
        assert torch.equal(before[1], after[1])
        assert torch.equal(before[0].rot90(client % 4, (2, 3)), after[0])
        whole = (torch.cat([x for x, _ in d.own_images(client)]) for d in (plain, skewed))
        assert torch.equal(next(whole).rot90(client % 4, (2, 3)), next(whole))
    tested = (torch.cat([x for x, _ in d.test_batches()]) for d in (plain, skewed))
    assert torch.equal(next(tested), next(tested))
    close_process()


def test_a_run_reports_the_clients_own_accuracy(tmp_path):
    keys = {"num_rounds": 1, "partition": "iid", "client_eval_every": 1}
    rows = [
        train_one(tmp_path / kind, feature_skew=kind, **keys).rounds()[-1]
        for kind in ("none", "noise")
    ]
    assert rows[0]["client_accuracy_mean"] != rows[1]["client_accuracy_mean"]


def test_some_images_are_those_of_the_first_to_the_last_client():
    config = parse_config(settings(partition="iid", feature_skew="rotation"))
    data, parts = load_partition(config)
    shown = some_images(config, data, parts, clients=3, images=4)
    last = config.num_clients - 1
    assert list(shown) == [0, last // 2, last]
    assert {images.shape for images in shown.values()} == {(4, 8, 8, 1)}
    first = parts.train[last][0]
    assert (shown[last][0] == np.rot90(data.train_images[first], last % 4)).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": "own", "classes": "a b", "dataset": "images"}, "images of its own"),
        ({"partition": "folders", "dataset": "images"}, "images of its own"),
        ({"dataset": "imagenet100"}, "is decoded during training"),
        ({"num_clients": 1, "shards": 10}, "there is only one client"),
        ({"method": "centralised"}, "there is only one client"),
        ({"feature_skew_level": 0}, "feature-skew-level"),
        ({"feature_skew": "blur"}, "feature-skew"),
    ],
)
def test_what_cannot_be_skewed_is_refused(changes, reason):
    with pytest.raises(UserError, match=reason):
        parse_config(settings(**{"feature_skew": "noise", **changes}))
