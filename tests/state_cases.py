"""Helpers for tests of the client state: a small state, and a second process that uses it."""

import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
HEADER = {"method": "scaffold", "model": "cnn", "classes": "10", "seed": "0"}
CURRENT, PREVIOUS = "personal.safetensors", "personal.prev.safetensors"

# Runs `body` with the state of client 3 of run "r" below argv[1] as `state`.
CHILD = """
import os, sys
from pathlib import Path
import numpy as np
import clients.state.store
from clients.state.store import ClientState, StateError
state = ClientState(Path(sys.argv[1]), "r", 3, {header!r})
def arrays(value):
    return {{"w": np.full((4, 3), value, np.float32), "n": np.array(value, np.int64)}}
{body}
"""


def arrays(value: int) -> dict[str, np.ndarray]:
    return {"w": np.full((4, 3), value, np.float32), "n": np.array(value, np.int64)}


def child(body: str) -> list[str]:
    return [sys.executable, "-c", CHILD.format(header=HEADER, body=body)]


def in_a_child(root: Path, body: str, status: int = 0) -> str:
    done = subprocess.run([*child(body), root], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


def same(actual: dict[str, np.ndarray] | None, expected: dict[str, np.ndarray]) -> bool:
    return (
        actual is not None
        and actual.keys() == expected.keys()
        and all(
            (actual[n].dtype, actual[n].shape, actual[n].tobytes())
            == (array.dtype, array.shape, array.tobytes())
            for n, array in expected.items()
        )
    )
