"""What the app's packages call named arrays; `strategies` and `clients` have the same name."""

import numpy as np

Arrays = dict[str, np.ndarray]
