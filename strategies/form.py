"""Names and shapes of a model's arrays: do received, returned or stored arrays fit a model?"""

from collections.abc import Mapping

import numpy as np


def misfit(arrays: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> str:
    """Return in words the first array whose name or shape is not as in `expected`; "" if none."""
    if missing := sorted(expected.keys() - arrays.keys()):
        return f"'{missing[0]}' is missing"
    if unknown := sorted(arrays.keys() - expected.keys()):
        return f"'{unknown[0]}' is unexpected"
    for name, array in arrays.items():
        if np.shape(array) != expected[name].shape:
            return f"'{name}' has shape {np.shape(array)} instead of {expected[name].shape}"
    return ""
