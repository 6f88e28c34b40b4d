"""The independent test vectors: inputs and results that were computed without this project."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def _read(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "vectors" / name).read_text())


VECTORS = _read("vectors.json")
HETEROGENEOUS = _read("vectors_heterogeneous.json")


def tensor(values: list) -> Tensor:
    """Return numbers of a vector in double precision, in which they were computed."""
    return torch.tensor(values, dtype=torch.float64)
