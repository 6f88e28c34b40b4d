"""The type of named arrays in the app; `strategies` and `clients` define the same type."""

import numpy as np

Arrays = dict[str, np.ndarray]
