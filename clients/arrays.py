"""The type of named arrays, in a file of its own: code that lists states needs no PyTorch."""

import numpy as np

Arrays = dict[str, np.ndarray]
