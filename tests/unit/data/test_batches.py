"""Batches are checked against slow, obvious per-image code, and for every sample served once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.functional import pad

from fedapp.core.errors import UserError
from fedapp.data.batches.in_memory import (
    PADDING,
    ClientBatches,
    batch_bounds,
    evaluation_batches,
    full_batch_bounds,
    parse_augmentation,
)

MEAN, STD = (0.5, 0.25, 0.1), (0.2, 0.3, 0.4)


def random_images(count: int, side: int = 32, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (count, side, side, channels)
    # Black stays out of the images, so that black pixels in a batch are padding.
    return torch.randint(1, 256, shape, generator=generator, dtype=torch.uint8)


def normalised(image: torch.Tensor) -> torch.Tensor:
    """Plain formula: uint8 [H, W, ch] to float32 [ch, H, W]."""
    channels = image.shape[-1]
    mean, std = torch.tensor(MEAN[:channels]), torch.tensor(STD[:channels])
    return ((image / 255 - mean) / std).permute(2, 0, 1)


def make(images: torch.Tensor, augmentation: str, batch_size: int = 8, **options) -> ClientBatches:
    channels = images.shape[-1]
    labels = torch.arange(len(images))
    return ClientBatches(
        images, labels, MEAN[:channels], STD[:channels], batch_size, augmentation, **options
    )


def one_epoch(batches: ClientBatches, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(batches.epoch(torch.Generator().manual_seed(seed)))


def crops(image: torch.Tensor, mode: str = "constant") -> dict[tuple[int, int], torch.Tensor]:
    """Return every crop that torchvision's RandomCrop may take of an image [H, W, ch], by offset.

    It pads by this function, `mode` being its `padding_mode`, and takes a window.
    """
    side = image.shape[0]
    padded = pad(image.permute(2, 0, 1), [PADDING], padding_mode=mode).permute(1, 2, 0)
    offsets = [(r, c) for r in range(2 * PADDING + 1) for c in range(2 * PADDING + 1)]
    return {(r, c): padded[r : r + side, c : c + side] for r, c in offsets}


@given(st.integers(0, 500), st.integers(1, 60))
def test_bounds_cover_everything_in_order_without_a_lone_last_sample(count, size):
    bounds = batch_bounds(count, size)
    assert [i for start, stop in bounds for i in range(start, stop)] == list(range(count))
    lengths = [stop - start for start, stop in bounds]
    assert all(length == size for length in lengths[:-1])
    if count > 1 and size > 1:
        assert lengths[-1] > 1
        assert lengths[-1] <= size + 1


@given(st.integers(0, 500), st.integers(1, 60), st.booleans())
def test_full_bounds_are_full_but_for_too_few_samples(count, size, keep_single):
    lengths = [stop - start for start, stop in full_batch_bounds(count, size, keep_single)]
    if count == 1 and not keep_single:
        assert lengths == []
    elif 0 < count < size:
        assert lengths == [count]
    else:
        assert lengths == [size] * (count // size)


def test_a_single_sample_is_a_batch_of_one():
    assert batch_bounds(1, 8) == [(0, 1)]
    assert batch_bounds(1, 8, keep_single=False) == []
    [(images, labels)] = one_epoch(make(random_images(1), "crop flip cutout"))
    assert images.shape == (1, 3, 32, 32)
    assert labels.tolist() == [0]


@pytest.mark.parametrize(
    "augmentation", ["none", "crop", "crop-reflect", "flip", "cutout", "crop flip cutout"]
)
@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 1), (32, 3)])
def test_every_sample_comes_once_per_epoch_as_float_images(augmentation, side, channels):
    batches = make(random_images(17, side, channels), augmentation)
    epoch = one_epoch(batches)
    assert [len(y) for _, y in epoch] == [8, 9]
    for images, labels in epoch:
        assert images.shape == (len(labels), channels, side, side)
        assert images.dtype == torch.float32
    assert sorted(torch.cat([y for _, y in epoch]).tolist()) == list(range(17))


def test_without_augmentation_images_are_only_normalised():
    images = random_images(10)
    for batch, labels in one_epoch(make(images, "none")):
        for image, label in zip(batch, labels, strict=True):
            torch.testing.assert_close(image, normalised(images[label]))


@pytest.mark.parametrize(("word", "mode"), [("crop", "constant"), ("crop-reflect", "reflect")])
def test_crops_are_windows_of_the_padded_image_as_torchvisions(word, mode):
    images = random_images(200)
    seen = set()
    for batch, labels in one_epoch(make(images, word)):
        for image, label in zip(batch, labels, strict=True):
            offsets, windows = zip(*crops(images[label], mode).items(), strict=True)
            expected = normalised(torch.cat(windows)).unflatten(1, (len(windows), -1))
            equal = torch.isclose(image[:, None], expected, atol=1e-5).all((0, 2, 3))
            (match,) = equal.nonzero()
            seen.add(offsets[match])
    assert {row for row, _ in seen} == {column for _, column in seen} == set(range(9))
    assert len(seen) > 60  # offsets of rows and columns are independent: 73 of 81 expected


def test_the_same_seed_takes_the_same_window_of_either_padding():
    images = random_images(30)
    black, mirrored = (
        one_epoch(make(images, "crop flip")),
        one_epoch(make(images, "crop-reflect flip")),
    )
    black_value = normalised(torch.zeros(1, 1, 3, dtype=torch.uint8))
    for (one, labels), (other, same) in zip(black, mirrored, strict=True):
        assert torch.equal(labels, same)
        margin = torch.isclose(one, black_value[None], atol=1e-5).all(dim=1, keepdim=True)
        assert torch.equal(one.masked_fill(margin, 0), other.masked_fill(margin, 0))
        assert margin.any()


def test_flips_mirror_about_half_of_the_images():
    images = random_images(400, 8)
    flipped = 0
    for batch, labels in one_epoch(make(images, "flip")):
        for image, label in zip(batch, labels, strict=True):
            straight = normalised(images[label])
            is_flipped = torch.allclose(image, straight.flip(2), atol=1e-5)
            assert is_flipped != torch.allclose(image, straight, atol=1e-5)
            flipped += is_flipped
    assert 150 < flipped < 250


@pytest.mark.parametrize(("word", "mode"), [("crop", "constant"), ("crop-reflect", "reflect")])
def test_crop_and_flip_together_mirror_the_window(word, mode):
    images = random_images(20, 8)
    for batch, labels in one_epoch(make(images, f"{word} flip")):
        for image, label in zip(batch, labels, strict=True):
            windows = [normalised(window) for window in crops(images[label], mode).values()]
            candidates = torch.stack(windows + [window.flip(2) for window in windows])
            assert (candidates - image).abs().amax(dim=(1, 2, 3)).min() < 1e-5


@pytest.mark.parametrize(("side", "size"), [(8, 4), (28, 16), (32, 16)])
def test_cutout_zeroes_one_square_around_any_pixel(side, size):
    images = random_images(300, side)
    centre_rows = set()
    for batch, labels in one_epoch(make(images, "cutout")):
        for image, label in zip(batch, labels, strict=True):
            hole = (image == 0).all(dim=0)
            expected = normalised(images[label]).masked_fill(hole, 0)
            torch.testing.assert_close(image, expected)
            rows, columns = hole.any(1).nonzero()[:, 0], hole.any(0).nonzero()[:, 0]
            assert hole.sum() == len(rows) * len(columns)
            for span in (rows, columns):
                start, stop = int(span[0]), int(span[-1]) + 1
                assert len(span) == stop - start
                clipped = start == 0 or stop == side
                assert len(span) == size or (clipped and size // 2 <= len(span) < size)
            centre_rows.add((int(rows[0]), int(rows[-1])))
    assert len(centre_rows) == side


@pytest.mark.parametrize("augmentation", ["none", "crop flip cutout"])
def test_equal_generators_give_equal_epochs_and_an_epoch_moves_the_generator(augmentation):
    batches = make(random_images(30), augmentation)
    generator = torch.Generator().manual_seed(4)
    first, second = list(batches.epoch(generator)), list(batches.epoch(generator))
    again = one_epoch(batches, seed=4)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][1], second[0][1])


def test_an_epoch_can_keep_the_order_and_leave_out_what_fills_no_batch():
    def sizes_and_order(batches: ClientBatches, **members) -> tuple[list[int], list[int]]:
        served = [labels for _, labels in batches.epoch(torch.Generator(), **members)]
        return [len(labels) for labels in served], torch.cat(served).tolist()

    images = random_images(11)
    in_order = make(images, "none", 4, shuffle=False)
    assert sizes_and_order(in_order) == ([4, 4, 3], list(range(11)))
    full = make(images, "none", 4, shuffle=False, bounds=full_batch_bounds)
    assert sizes_and_order(full) == ([4, 4], list(range(8)))
    assert sizes_and_order(full, members=torch.tensor([9, 2])) == ([2], [9, 2])


def test_batches_leave_the_global_generator_alone():
    before = torch.random.get_rng_state()
    one_epoch(make(random_images(10), "crop flip cutout"))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("augmentation", ["none", "crop flip cutout"])
def test_the_channels_of_a_batch_come_last_in_memory(augmentation):
    for images, _ in one_epoch(make(random_images(10), augmentation)):
        assert images.shape[1:] == (3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_changing_a_batch_changes_no_data():
    batches = make(random_images(10), "none")
    first = one_epoch(batches)
    kept = first[0][0].clone()
    for images, _ in first:
        images.zero_()
    assert torch.equal(one_epoch(batches)[0][0], kept)


def test_unknown_augmentation_is_named():
    words = "crop crop-reflect rrc flip cutout"
    with pytest.raises(UserError, match=rf"unknown augmentation 'mixup'.*'{words}'"):
        make(random_images(2), "crop mixup")
    with pytest.raises(UserError, match="'crop' and 'crop-reflect' exclude each other"):
        make(random_images(2), "crop-reflect crop")
    assert parse_augmentation("none") == frozenset()


def evaluation(count: int, **options) -> list[tuple[torch.Tensor, torch.Tensor]]:
    labels = torch.arange(count)
    return list(evaluation_batches(random_images(count, 8), labels, MEAN, STD, 4, **options))


def test_evaluation_keeps_the_order_and_merges_a_lone_last_sample():
    batches = evaluation(9)
    assert [y.tolist() for _, y in batches] == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    images = random_images(9, 8)
    torch.testing.assert_close(batches[1][0][4], normalised(images[8]))


def test_evaluation_shuffles_by_seed_images_and_labels_together():
    batches, again = evaluation(20, shuffle_seed=3), evaluation(20, shuffle_seed=3)
    order = torch.cat([y for _, y in batches]).tolist()
    assert sorted(order) == list(range(20))
    assert order != list(range(20))
    assert order == torch.cat([y for _, y in again]).tolist()
    images = random_images(20, 8)
    for batch, labels in batches:
        torch.testing.assert_close(batch, torch.stack([normalised(images[i]) for i in labels]))
