"""The jobs that the programs of this folder train, their random images, and how they report.

It needs PyTorch and NumPy only, because pfl-research runs it in an environment of its own.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

CLASSES, SIDE, LR, MOMENTUM = 10, 32, 0.01, 0.9


@dataclass(frozen=True)
class Job:
    """In each round a cohort of the clients trains; each client has `images` images."""

    clients: int
    cohort: int
    images: int
    epochs: int
    batch_size: int
    rounds: int

    @property
    def trained(self) -> int:
        """Images that one round trains on, counted once per epoch."""
        return self.cohort * self.images * self.epochs


JOBS = {
    "papers": Job(clients=10, cohort=10, images=500, epochs=5, batch_size=50, rounds=3),
    "small": Job(clients=1000, cohort=50, images=50, epochs=1, batch_size=10, rounds=8),
}


def write(job: Job, folder: Path) -> None:
    """Write the job and its images: uint8 [clients * images, 3, 32, 32], and labels."""
    rng = np.random.default_rng(0)
    count = job.clients * job.images
    images = rng.integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)
    np.savez(folder / "images.npz", images=images, labels=np.arange(count) % CLASSES)
    (folder / "job.json").write_text(json.dumps(asdict(job)))


def read(folder: Path) -> tuple[Job, torch.Tensor, torch.Tensor]:
    """Return the job, its images as normalised float32, and its labels."""
    job = Job(**json.loads((folder / "job.json").read_text()))
    data = np.load(folder / "images.npz")
    images = torch.from_numpy(data["images"]).float().div_(255).sub_(0.5).div_(0.25)
    return job, images, torch.from_numpy(data["labels"]).long()


def network() -> nn.Sequential:
    """Return fedapp's `cnn`: two convolutions and a hidden layer, 2.2 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (SIDE // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def note(folder: Path) -> None:
    """Append the time of a round's end."""
    with (folder / "rounds.txt").open("a") as file:
        file.write(f"{time.time()}\n")
