"""The loss around a model's weights, in random directions and along the largest curvature.

Perturbations are relative to the norm of the weights, so that models of different scales are
comparable. Only trained weights are perturbed; a frozen head does not change.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

RADII = (0.0, 0.1, 0.25, 0.5, 1.0)
DRAWS = 5  # random directions
SPAN, STEPS = 0.1, 11  # of the two-dimensional slice
MOST_ITERATIONS, TOLERANCE = 100, 1e-3  # of the power iteration; the tolerance is relative

Direction = list[Tensor]
Loss = Callable[[], Tensor]


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the trained parameters, which may be perturbed."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gaussian_losses(
    model: nn.Module, loss: Loss, generator: torch.Generator
) -> list[dict[str, float]]:
    """Return mean and deviation of the loss at each of `RADII`, over random directions.

    The direction is Gaussian, scaled to radius * ||w||. The model is unchanged afterwards (FedNTD,
    Lee et al. 2022, the appendix on the loss landscape).
    """
    directions = [_gaussian(model, generator) for _ in range(DRAWS)]
    rows = []
    for radius in RADII:
        losses = [_at(model, loss, [(d, radius)]) for d in (directions if radius else [[]])]
        rows.append(
            {"radius": radius, "loss": float(np.mean(losses)), "std": float(np.std(losses))}
        )
    return rows


def hessian_directions(
    model: nn.Module, loss: Loss, generator: torch.Generator, iterations: int = MOST_ITERATIONS
) -> tuple[list[Direction], list[float]]:
    """Return the two directions of largest absolute curvature and their eigenvalues.

    They come of a power iteration, which ends when an eigenvalue changes by less than `TOLERANCE`.
    Each product with the Hessian is a second backward pass through `loss`; the second direction is
    kept orthogonal to the first. Directions are scaled to the norm of the weights.
    """
    directions: list[Direction] = []
    values: list[float] = []
    for _ in range(2):
        vector = _orthogonal(_gaussian(model, generator), directions)
        value = 0.0
        for _ in range(iterations):
            product, before = _hessian_times(model, loss, vector), value
            value = _dot(product, vector) / max(_dot(vector, vector), 1e-30)
            vector = _rescaled(_orthogonal(product, directions), model)
            if abs(value - before) <= TOLERANCE * abs(value):
                break
        directions.append(vector)
        values.append(value)
    return directions, values


def slice_losses(model: nn.Module, loss: Loss, directions: Sequence[Direction]) -> np.ndarray:
    """Return the loss on a square grid along two directions, [STEPS, STEPS], centre = the model."""
    steps = np.linspace(-SPAN, SPAN, STEPS)
    first, second = directions
    return np.array([[_at(model, loss, [(first, a), (second, b)]) for a in steps] for b in steps])


def _at(model: nn.Module, loss: Loss, moves: Sequence[tuple[Direction, float]]) -> float:
    """Return the loss at displaced weights, and restore the weights exactly."""
    parameters = trained(model)
    with torch.no_grad():
        originals = [parameter.clone() for parameter in parameters]
        for direction, length in moves:
            for parameter, step in zip(parameters, direction, strict=False):
                parameter.add_(step, alpha=float(length))
        value = float(loss())
        for parameter, before in zip(parameters, originals, strict=True):
            parameter.copy_(before)
    return value


def _hessian_times(model: nn.Module, loss: Loss, vector: Direction) -> Direction:
    parameters = trained(model)
    gradients = torch.autograd.grad(loss(), parameters, create_graph=True)
    along = sum((g * v).sum() for g, v in zip(gradients, vector, strict=True))
    products = torch.autograd.grad(along, parameters, allow_unused=True)  # type: ignore[arg-type]
    return [
        torch.zeros_like(parameter) if product is None else product.detach()
        for parameter, product in zip(parameters, products, strict=True)
    ]


def _gaussian(model: nn.Module, generator: torch.Generator) -> Direction:
    draws = [
        torch.randn(parameter.shape, generator=generator).to(parameter.device)
        for parameter in trained(model)
    ]
    return _rescaled(draws, model)


def _rescaled(vector: Direction, model: nn.Module) -> Direction:
    """Scale a direction to the norm of the model's trained weights."""
    own = [parameter.detach() for parameter in trained(model)]
    factor = (_dot(own, own) / max(_dot(vector, vector), 1e-30)) ** 0.5
    return [factor * part for part in vector]


def _orthogonal(vector: Direction, others: Sequence[Direction]) -> Direction:
    for other in others:
        share = _dot(vector, other) / max(_dot(other, other), 1e-30)
        vector = [a - share * b for a, b in zip(vector, other, strict=True)]
    return vector


def _dot(one: Direction, other: Direction) -> float:
    return float(sum(float((a * b).sum()) for a, b in zip(one, other, strict=True)))
