"""The Dirichlet split of FedORGP's public code, as a file for `partition='file'`.

That code, from which FedDOR's numbers for other methods probably come, draws one split with NumPy's
global generator at seed 1 and stores it. This script makes the same draws in the same order, so it
gives the images that each client has there: Dirichlet proportions of each class of the pooled data,
drawn again until every client has 128 images, and scikit-learn's split of each client's part.

    python benchmarks/fedorgp_split.py split.json --dataset cifar100 --data-dir DIR --alpha 0.1
    fedapp run -c feddor-cifar100-dirichlet \\
        -c "data-dir='DIR' partition='file' partition-file='split.json' pool-data=true"
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.model_selection import train_test_split

from fedapp.data.datasets import load_dataset
from fedapp.data.partition.personal_splits import TRAIN_FRACTION, least_size
from fedapp.data.partition.split_file import write_split
from fedapp.data.partition.table import Partition

SEED = 1  # of the published generator


def main() -> None:
    """Write the file and print the size of each client."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="file to write, JSON")
    parser.add_argument("--dataset", default="cifar100")
    parser.add_argument("--data-dir", default="", help="folder of the data set")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--alpha", type=float, default=0.1)
    options = parser.parse_args()
    labels = np.asarray(load_dataset(options.dataset, options.data_dir).pooled().train_labels)
    np.random.seed(SEED)
    parts = dirichlet(labels, options.clients, options.alpha)
    halves = [train_test_split(part, train_size=TRAIN_FRACTION, shuffle=True) for part in parts]
    split = Partition([train for train, _ in halves], [test for _, test in halves], pooled=True)
    write_split(options.file, split)
    print(f"{options.file}: {' '.join(str(len(part)) for part in parts)} images")


def dirichlet(labels: np.ndarray, num_clients: int, alpha: float) -> list[np.ndarray]:
    """Return each client's images, drawn from NumPy's global generator."""
    members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
    while True:
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients, dtype=np.int64)
        for of_class in members:
            mixed = of_class.copy()
            np.random.shuffle(mixed)
            shares = np.random.dirichlet(np.full(num_clients, alpha))
            shares *= sizes < len(labels) / num_clients
            cuts = (np.cumsum(shares / shares.sum()) * len(mixed)).astype(int)[:-1]
            for client, piece in enumerate(np.split(mixed, cuts)):
                parts[client].append(piece)
                sizes[client] += len(piece)
        if sizes.min() >= least_size(len(labels), num_clients):
            return [np.concatenate(pieces) for pieces in parts]


if __name__ == "__main__":
    main()
