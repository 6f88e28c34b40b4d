"""ImageNet-100 from a folder: read as published, cropped as torchvision does, decoded as used."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.data.batches.crops import draw_uniform
from fedapp.data.batches.in_memory import Normaliser, full_batch_bounds
from fedapp.data.batches.serving import plain_batches, training_batches
from fedapp.data.batches.streamed import AHEAD, StreamedBatches, decoded
from fedapp.data.dataset import Dataset
from fedapp.data.datasets import load_dataset
from fedapp.data.readers.encoded import EncodedImages
from fedapp.runtime.process.context import ProcessContext

WNIDS = [f"n{number:08d}" for number in range(102)]
CPU = torch.device("cpu")


def photo(path: Path, seed: int, size: tuple[int, int] = (48, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    Image.fromarray(rows).resize(size, Image.Resampling.BILINEAR).save(path, quality=95)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    for label, wnid in enumerate(reversed(WNIDS)):
        for index in range(2 if label == 0 else 1):
            photo(root / "train" / wnid / f"{wnid}_{index}.JPEG", label)
        photo(root / "val" / wnid / f"ILSVRC2012_val_{label:08d}.JPEG", 500 + label)
    return root


@pytest.fixture
def data(folder) -> Dataset:
    return load_dataset("imagenet100", str(folder))


def test_the_first_hundred_classes_are_taken_without_decoding_anything(data):
    assert data.classes == tuple(WNIDS[:100])
    assert (len(data.train_labels), len(data.test_labels)) == (100, 100)
    assert (data.image_size, data.channels) == (224, 3)
    assert isinstance(data.train_images, EncodedImages)
    assert data.mean == (0.485, 0.456, 0.406)


def test_a_class_list_chooses_and_orders_the_classes(folder):
    listed = [*reversed(WNIDS[2:])]
    (folder / "mine.txt").write_text("\n".join(f"{wnid} some words" for wnid in listed))
    data = load_dataset("imagenet100", str(folder), class_list="mine.txt")
    assert data.classes == tuple(listed)
    # Nodes with another list are refused before round 1, by this hash.
    assert data.classes_hash() != load_dataset("imagenet100", str(folder)).classes_hash()
    assert len(data.train_labels) == 101
    assert data.train_labels[:2].tolist() == [0, 0]


@pytest.mark.parametrize("size", [(500, 375), (300, 400), (256, 256), (90, 60)])
def test_crops_are_those_of_torchvision(tmp_path, size):
    from torchvision import transforms
    from torchvision.transforms.functional import resized_crop

    from fedapp.data.batches.crops import crop_boxes

    photo(tmp_path / "a.png", 1, size)
    source = EncodedImages(tmp_path, ["a.png"], 224)
    image = Image.open(tmp_path / "a.png").convert("RGB")
    plain = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    assert np.array_equal(source[np.array([0])][0], np.asarray(plain(image)))
    uniform = draw_uniform(1, torch.Generator().manual_seed(3))[0]
    box = crop_boxes(uniform[None], size[1], size[0])[0].tolist()
    expected = np.asarray(resized_crop(image, *box, [224, 224]))
    assert np.array_equal(source.decode((0, uniform, False)), expected)
    assert np.array_equal(source.decode((0, uniform, True)), expected[:, ::-1])


def serve(data: Dataset, threads: int, augmentation: str = "rrc flip") -> list:
    members = np.arange(40, 61)
    batches = training_batches(data, members, 5, augmentation, CPU, threads)
    assert isinstance(batches, StreamedBatches)
    return list(batches.epoch(torch.Generator().manual_seed(4)))


def test_epochs_are_the_same_for_any_number_of_threads(data):
    alone, three = serve(data, 1), serve(data, 3)
    assert [len(labels) for _, labels in alone] == [5, 5, 5, 6]
    for (images, labels), (again, of_again) in zip(alone, three, strict=True):
        assert torch.equal(images, again)
        assert torch.equal(labels, of_again)
    served = torch.cat([labels for _, labels in alone])
    assert sorted(served.tolist()) == sorted(data.train_labels[40:61].tolist())


def test_photos_are_left_out_and_kept_in_order_as_other_images_are(data):
    members = np.arange(40, 61)
    batches = training_batches(
        data, members, 5, "none", CPU, bounds=full_batch_bounds, shuffle=False
    )
    served = [labels for _, labels in batches.epoch(torch.Generator())]
    assert [len(labels) for labels in served] == [5, 5, 5, 5]
    assert torch.cat(served).tolist() == data.train_labels[40:60].tolist()


def test_members_of_an_epoch_and_normalisation(data):
    batches = training_batches(data, np.arange(10), 4, "none", CPU)
    [(images, labels)] = batches.epoch(torch.Generator(), torch.tensor([3, 7]))
    assert sorted(labels.tolist()) == [3, 7]
    row = labels.tolist().index(7)
    pixels = torch.from_numpy(data.train_images[np.array([7])])
    expected = Normaliser(data.mean, data.std, 224, CPU)(pixels)[0]
    assert torch.equal(images[row], expected)


def test_evaluation_serves_every_image_once_in_bounded_batches(data):
    batches = list(plain_batches(data, "test", None, 500, CPU, shuffle_seed=7))
    assert [len(labels) for _, labels in batches] == [100]
    order = torch.cat([labels for _, labels in batches]).tolist()
    assert sorted(order) == list(range(100))
    assert order != list(range(100))
    [(_, labels)] = plain_batches(data, "test", np.array([5, 2]), 500, CPU)
    assert labels.tolist() == [5, 2]


def test_few_images_are_in_memory_at_a_time():
    class Counting(EncodedImages):
        """Counts the decoded images that have not been handed over yet."""

        def __init__(self) -> None:
            super().__init__(Path(), ["x"] * 200, 8)
            self.held, self.most, self.lock = 0, 0, threading.Lock()

        def decode(self, task):
            with self.lock:
                self.held += 1
                self.most = max(self.most, self.held)
            return np.zeros((8, 8, 3), np.uint8)

    source = Counting()
    batches = [[(row, None, False)] * 10 for row in range(20)]
    served = 0
    for images in decoded(source, batches, threads=4):
        served += len(images)
        with source.lock:
            source.held -= len(images)
    assert served == 200
    assert source.most <= 10 * (AHEAD + 1)


def test_a_pool_of_photos_stays_encoded(data):
    pool = data.pooled()
    assert isinstance(pool.train_images, EncodedImages)
    assert len(pool.train_images) == 200
    last = pool.train_images[np.array([199])]
    assert np.array_equal(last, data.test_images[np.array([99])])


def test_a_photo_of_more_than_8_bits_is_refused_and_not_shown_white(tmp_path):
    Image.fromarray(np.full((40, 48), 3000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(UserError, match=r"deep\.png has more than 8 bits per channel"):
        EncodedImages(tmp_path, ["deep.png"], 32)[np.array([0])]


def test_a_broken_photo_is_named_when_it_is_used(folder, tmp_path):
    photo(tmp_path / "a.JPEG", 1)
    (tmp_path / "b.JPEG").write_bytes((tmp_path / "a.JPEG").read_bytes()[:300])
    source = EncodedImages(tmp_path, ["a.JPEG", "b.JPEG"], 32)
    with pytest.raises(UserError, match=f"cannot read image {tmp_path / 'b.JPEG'}"):
        list(decoded(source, [[(0, None, False)], [(1, None, False)]]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "mine.txt is damaged or not what its name says: it is empty"),
        ("n00000001\n" * 100, "it lists 1 different classes, not 100"),
        ("\n".join(["cat", *WNIDS[:99]]), "class 'cat' of .*mine.txt has no folder in .*train"),
        (None, "mine.txt is damaged .*No such file"),
    ],
)
def test_a_wrong_class_list_is_explained(folder, tmp_path, content, words):
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=words):
        load_dataset("imagenet100", str(folder), class_list=str(path))


def test_a_wrong_layout_is_explained(tmp_path):
    with pytest.raises(UserError, match="'imagenet100' needs data-dir: a folder with train/WNID"):
        load_dataset("imagenet100")
    (tmp_path / "train" / WNIDS[0]).mkdir(parents=True)
    with pytest.raises(UserError, match="no folder 'val' in data-dir"):
        load_dataset("imagenet100", str(tmp_path))
    (tmp_path / "val").mkdir()
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()  # no class
    with pytest.raises(UserError, match="train has 1 class folders, not 100"):
        load_dataset("imagenet100", str(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"class-list": "x.txt"}, "'class-list' is 'x.txt', but dataset 'digits' has one list"),
        (
            {"dataset": "imagenet100", "shards": 20, "augmentation": "crop"},
            "augmentation 'crop' is not for photos of many sizes; use 'rrc flip'",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(change, words):
    with pytest.raises(UserError, match=words):
        parse_config(change)


def test_a_client_trains_on_photos_as_on_any_other_images(folder):
    config = parse_config(
        {
            "method": "fedavg", "dataset": "imagenet100", "data-dir": str(folder),
            "model": "resnet10", "partition": "iid", "num-clients": 50, "local-epochs": 2,
            "batch-size": 2, "lr": 0.001,
        }
    )  # fmt: skip
    assert config.augmentation == "rrc flip"
    node = ProcessContext(config)
    client = node.client(7)
    received = client.get_parameters({})
    arrays, examples, metrics = client.fit(received, {"server_round": 1, "lr": 0.001})
    again, _, _ = node.client(7).fit(received, {"server_round": 1, "lr": 0.001})
    assert (examples, metrics["steps"]) == (2, 2)
    assert any((own != before).any() for own, before in zip(arrays, received, strict=True))
    assert all((one == two).all() for one, two in zip(arrays, again, strict=True))
