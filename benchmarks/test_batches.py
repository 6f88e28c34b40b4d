"""Test saved models on test batches of other compositions: BatchNorm normalises by the batch.

    python benchmarks/test_batches.py RUN [RUN ...]

RUN is a run directory; a run that is not complete is tested at its newest checkpoint. Prints a
Markdown table with the accuracy in percent: on batches of 50, 128 and 500 images in the order of
the test set; on batches of 50 of each client's own test images, class by class; and on one batch
of all of them. Without BatchNorm these are equal, if every test image is one client's. It was
written to find out what published accuracies were measured on.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from augmented_test import hits, load
from runs_in_turn import markdown
from torch import nn

from fedapp.config.resolve import parse_config
from fedapp.data.dataset import Dataset
from fedapp.results.run_directory import RunDirectory
from fedapp.runtime.process.context import ProcessContext

MIXED = (50, 128, 500)
OWN = 50


def accuracy(
    model: nn.Module, data: Dataset, parts: Iterable[np.ndarray], size: int | None = None
) -> str:
    """Return the accuracy in percent over parts of the test images, each in batches of its own."""
    listed = list(parts)
    correct = sum(hits(model, data, part, size or len(part)) for part in listed)
    return f"{100 * correct / sum(map(len, listed)):.2f}"


def row(folder: Path) -> list[str]:
    """Return the line of one run."""
    process = ProcessContext(parse_config(RunDirectory.load(folder).config()))
    weights, model, data = load(process, folder), process.slot.model, process.data
    everything = [data.test_members()]
    own = [np.asarray(part) for part in data.partition.test]
    mixed = [accuracy(model, data.dataset, everything, size) for size in MIXED]
    by_client = [accuracy(model, data.dataset, own, size) for size in (OWN, None)]
    return [folder.name, weights, *mixed, *by_client]


def main() -> None:
    """Test and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    mixed = [f"mixed, {size}" for size in MIXED]
    columns = ("run", "weights", *mixed, f"own, {OWN}", "own, all")
    print(markdown(columns, [row(folder) for folder in options.runs]))


if __name__ == "__main__":
    main()
