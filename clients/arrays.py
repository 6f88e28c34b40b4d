"""What clients call named arrays: apart from all else, for what lists states needs no PyTorch."""

import numpy as np

Arrays = dict[str, np.ndarray]
