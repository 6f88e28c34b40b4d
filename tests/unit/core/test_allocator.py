"""Freed memory is used again instead of being asked of the system anew, with the same results."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from clients.training.local_training import FrozenModels, LocalSettings, train
from clients.training.objective import Objective
from fedapp.core.hardware import keep_memory
from fedapp.models.model import build_model

FAULTS = """
import resource
from fedapp.core.hardware import keep_memory
kept = keep_memory() if {keep} else None
for _ in range(3):  # the first blocks are new in any case
    block = bytes(bytearray(8_000_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = bytes(bytearray(8_000_000))
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(keep: bool) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(keep=keep)], capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(not keep_memory(), reason="not glibc, or MALLOC_ variables are set")
def test_large_blocks_are_used_again():
    kept, faults = _faults(keep=True)
    assert kept == "True"
    assert faults * 4 < max(_faults(keep=False)[1], 1000)


def test_the_users_own_setting_is_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert not keep_memory()


def test_training_has_the_same_bits():
    def trained() -> np.ndarray:
        torch.manual_seed(0)
        model = build_model("cnn", "linear", 3, 32, 10, seed=0)
        batch = torch.randn(20, 3, 32, 32), torch.arange(20) % 10
        train(model, FrozenModels(), Objective(), lambda: [batch] * 3, 0.1, LocalSettings(1))
        return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])

    before = trained()
    keep_memory()
    np.testing.assert_array_equal(trained(), before)
