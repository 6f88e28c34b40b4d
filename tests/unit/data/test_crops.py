"""RandomResizedCrop is checked against torchvision, window by window."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapp.core.errors import UserError
from fedapp.data.batches.crops import crop_boxes, draw_uniform, resample
from fedapp.data.batches.in_memory import ClientBatches, parse_augmentation


def boxes_of(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    return crop_boxes(draw_uniform(count, torch.Generator().manual_seed(seed)), height, width)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 1000))
def test_windows_lie_in_the_image(height, width, seed):
    top, left, tall, wide = boxes_of(50, height, width, seed).unbind(1)
    assert ((tall > 0) & (wide > 0) & (top >= 0) & (left >= 0)).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()


def test_areas_and_ratios_are_those_of_torchvision():
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    image = torch.zeros(1, 96, 128)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(3000)]
    )
    ours = boxes_of(3000, 96, 128)
    for of in (
        lambda b: b[:, 2] * b[:, 3] / (96.0 * 128),
        lambda b: torch.log(b[:, 3] / b[:, 2]),
        lambda b: b[:, 0].float(),
        lambda b: b[:, 1].float(),
    ):
        # A Kolmogorov-Smirnov distance of 0.042 happens once in a hundred times by chance.
        both = torch.cat([of(ours), of(theirs)]).unique()
        gap = [
            torch.searchsorted(of(sample).sort()[0], both, right=True) / 3000.0
            for sample in (ours, theirs)
        ]
        assert (gap[0] - gap[1]).abs().max() < 0.042


@pytest.mark.parametrize(("height", "width"), [(300, 40), (40, 300)])
def test_without_a_fit_the_central_window_is_taken(height, width):
    # The largest area and a square do not fit into a strip.
    uniform = torch.full((1, 10, 4), 0.5, dtype=torch.float64)
    [[top, left, tall, wide]] = crop_boxes(uniform, height, width).tolist()
    assert sorted([tall, wide]) == [40, 53]
    assert top == (height - tall) // 2
    assert left == (width - wide) // 2


@pytest.mark.parametrize("side", [8, 32])
def test_resampling_is_that_of_torchvision(side):
    from torchvision.transforms.functional import resized_crop

    generator = torch.Generator().manual_seed(1)
    shape = (40, side, side, 3)
    images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    boxes = boxes_of(40, side, side)
    for image, box, ours in zip(images, boxes.tolist(), resample(images, boxes), strict=True):
        theirs = resized_crop(image.permute(2, 0, 1).float(), *box, [side, side])
        torch.testing.assert_close(ours.permute(2, 0, 1), theirs, atol=2e-3, rtol=1e-4)


def test_epochs_crop_flip_and_normalise():
    images = torch.randint(1, 256, (60, 16, 16, 1), dtype=torch.uint8)
    labels = torch.arange(60)
    plain = ClientBatches(images, labels, (0.0,), (1.0,), 20, "rrc")
    both = ClientBatches(images, labels, (0.0,), (1.0,), 20, "rrc flip")
    mirrored = 0
    epochs = (b.epoch(torch.Generator().manual_seed(3)) for b in (plain, both))
    for (a, of_a), (b, of_b) in zip(*epochs, strict=True):
        assert a.shape == (20, 1, 16, 16)
        assert 0 < a.min() < a.max() <= 1
        assert torch.equal(of_a, of_b)
        same = (a == b).flatten(1).all(1)
        assert (same | (a == b.flip(3)).flatten(1).all(1)).all()
        mirrored += int((~same).sum())
    assert 15 < mirrored < 45


def test_there_is_one_way_to_crop():
    with pytest.raises(UserError, match="'crop' and 'rrc' exclude each other"):
        parse_augmentation("crop rrc flip")
