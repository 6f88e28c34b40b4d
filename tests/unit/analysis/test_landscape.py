"""The loss landscape on a function whose curvature is known."""

import numpy as np
import pytest
import torch
from torch import nn

from fedapp.analysis.formulas import landscape


class Bowl(nn.Module):
    """A quadratic of three weights with curvatures 10, 4 and 1; one weight is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.free = nn.Parameter(torch.tensor([2.0, 0.0, 0.0]))
        self.frozen = nn.Parameter(torch.tensor(5.0), requires_grad=False)

    def loss(self) -> torch.Tensor:
        curvature = torch.tensor([10.0, 4.0, 1.0])
        return 0.5 * (curvature * (self.free - torch.tensor([2.0, 0.0, 0.0])) ** 2).sum()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_power_iteration_finds_the_two_steepest_directions():
    bowl = Bowl()
    directions, values = landscape.hessian_directions(bowl, bowl.loss, generator())
    assert values == pytest.approx([10.0, 4.0], rel=1e-3)
    (first,), (second,) = directions
    assert abs(first[0]) == pytest.approx(2, rel=1e-2)
    assert abs(second[1]) == pytest.approx(2, rel=1e-2)
    assert first.norm() == pytest.approx(2)  # the norm of the weights
    assert second.norm() == pytest.approx(2)


def test_slice_is_lowest_at_the_model_and_steeper_along_the_first_direction():
    bowl = Bowl()
    directions, _ = landscape.hessian_directions(bowl, bowl.loss, generator())
    grid = landscape.slice_losses(bowl, bowl.loss, directions)
    middle = landscape.STEPS // 2
    assert grid.argmin() == middle * landscape.STEPS + middle
    assert grid[middle, 0] == pytest.approx(0.5 * 10 * 0.2**2, rel=1e-2)
    assert grid[0, middle] == pytest.approx(0.5 * 4 * 0.2**2, rel=1e-2)


def test_random_perturbations_grow_with_the_radius_and_leave_the_model_as_it_was():
    bowl = Bowl()
    rows = landscape.gaussian_losses(bowl, bowl.loss, generator())
    losses = [row["loss"] for row in rows]
    assert losses[0] == 0
    assert np.all(np.diff(losses) > 0)
    assert losses[-1] == pytest.approx(4 * losses[-2], rel=1e-3)  # a quadratic, at twice the radius
    assert bowl.free.tolist() == [2.0, 0.0, 0.0]
    assert bowl.frozen == 5
