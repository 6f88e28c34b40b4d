"""The positions of two-dimensional features on the unit circle, class by class.

With a bottleneck of two features before the head no projection is needed: the plot shows the whole
input of the head, except its length.
"""

import numpy as np

from fedapp.analysis.formulas.features import wide

STEP = 2  # degrees, between neighbouring points of GRID
GRID = np.arange(-180, 180, STEP)
BANDWIDTH = 5.0  # degrees, the kernel's standard deviation


def angles(features: np.ndarray) -> np.ndarray:
    """Return the angle of features [n, 2], atan2 in degrees from -180 to 180: [n]."""
    rows = wide(features)
    return np.degrees(np.arctan2(rows[:, 1], rows[:, 0]))


def density(degrees: np.ndarray) -> np.ndarray:
    """Return the density of angles [n] at each point of `GRID`, per degree; NaN if n is 0.

    This is a Gaussian kernel estimate on the circle: angles near 180 and -180 degrees are close.
    """
    if not len(degrees):
        return np.full(len(GRID), np.nan)
    differences = (GRID[:, None] - degrees + 180) % 360 - 180
    heights = np.exp(-0.5 * (differences / BANDWIDTH) ** 2) / (BANDWIDTH * np.sqrt(2 * np.pi))
    return heights.mean(axis=1)
