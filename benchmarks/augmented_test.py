"""Test saved models on augmented test images, as if a test loader had the training transform.

    python benchmarks/augmented_test.py RUN [RUN ...]

RUN is a run directory; a run that is not complete is tested at its newest checkpoint. Prints a
Markdown table: the accuracy on the test images as they are, with crops and flips, and with every
augmentation of the run's training; in percent, the last two as mean and standard deviation over
five passes. It was written to find out what published accuracies were measured on.
"""

import argparse
import statistics
from pathlib import Path

import numpy as np
import torch
from runs_in_turn import markdown
from torch import nn

from clients.training.arrays import load_arrays
from fedapp.config.resolve import parse_config
from fedapp.data.batches.in_memory import ClientBatches
from fedapp.data.dataset import Dataset
from fedapp.results import checkpoint
from fedapp.results.final_model import has_model
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.global_model import load_weights

PASSES = 5


def load(process: ProcessContext, folder: Path) -> str:
    """Load a run's final model, or its newest checkpoint; return which."""
    run = RunDirectory.load(folder)
    if has_model(run):
        load_weights(process.slot.model, run)
        return "final"
    saved = checkpoint.load(folder, process.config.fingerprint())
    load_arrays(process.slot.shared, saved.arrays)
    return f"round {saved.server_round}"


@torch.no_grad()
def hits(
    model: nn.Module, data: Dataset, rows: np.ndarray, size: int, augmentation: str = "none",
    seed: int = 0,
) -> int:  # fmt: skip
    """Return how many of some test images, in batches of `size`, are classified correctly."""
    device = next(model.parameters()).device
    batches = ClientBatches(
        torch.from_numpy(np.asarray(data.test_images)[rows]).to(device),
        torch.from_numpy(np.asarray(data.test_labels)[rows]).to(device),
        data.mean, data.std, size, augmentation, shuffle=False,
    )  # fmt: skip
    model.eval()
    return sum(
        int((model(images)[1].argmax(1) == labels).sum())
        for images, labels in batches.epoch(torch.Generator().manual_seed(seed))
    )


def accuracy(process: ProcessContext, size: int, augmentation: str, seed: int) -> float:
    """Return the accuracy in percent on one augmented pass over batches of `size` test images."""
    rows, data = process.data.test_members(), process.data.dataset
    return 100 * hits(process.slot.model, data, rows, size, augmentation, seed) / len(rows)


def row(folder: Path) -> list[str]:
    """Return the line of one run."""
    config = parse_config(RunDirectory.load(folder).config())
    process = ProcessContext(config)
    size = int(config.test_batch_size)
    cells = [folder.name, load(process, folder)]
    for augmentation in ("none", "crop flip", str(config.augmentation)):
        passes = range(1 if augmentation == "none" else PASSES)
        found = [accuracy(process, size, augmentation, i) for i in passes]
        spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
        cells.append(f"{statistics.mean(found):.2f}{spread}")
    return cells


def main() -> None:
    """Test and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = ("run", "weights", "as they are", "crop flip", "as in training")
    print(markdown(columns, [row(folder) for folder in options.runs]))


if __name__ == "__main__":
    main()
