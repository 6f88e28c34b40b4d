"""The data of a run: read once per process, divided among the clients, compared between hosts.

Every host draws the whole partition from its own copy of the data. One file more on one of them
gives an unrelated draw, in which clients of two hosts share images, so copies are compared by a
hash before round 1.
"""

import hashlib
from functools import lru_cache

import numpy as np

from fedapp.config.run_config import RunConfig
from fedapp.core.rng import Stream, numpy_rng
from fedapp.data.datasets import Dataset, load_dataset
from fedapp.data.partition.table import Partition, make_partition


@lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str, download: bool, class_list: str, classes: str) -> Dataset:
    return load_dataset(name, data_dir, download, class_list, classes)


def forget_files() -> None:
    """Forget what this process has read: what comes next reads the files as they are then."""
    _dataset.cache_clear()


def load_partition(config: RunConfig) -> tuple[Dataset, Partition]:
    """Load a configuration's data and draw its partition."""
    data = prepared(config)
    return data, draw_partition(config, data)


def prepared(config: RunConfig, data_dir: str = "") -> Dataset:
    """Load a configuration's data set, pooled and normalised as it asks for.

    `data_dir` overrides the configuration's; raises UserError as `load_dataset` does.
    """
    folder = data_dir or config.data_dir
    data = _dataset(config.dataset, folder, config.download, config.class_list, config.classes)
    if config.pool_data is True:
        data = data.pooled()
    return data.symmetric() if config.normalisation == "symmetric" else data


def draw_partition(config: RunConfig, data: Dataset, own: int | None = None) -> Partition:
    """Draw a configuration's partition; `own` is the client whose own data these are.

    Raises:
        UserError: a split that these labels do not allow.
    """
    return make_partition(
        config.partition,
        np.asarray(data.train_labels),
        np.asarray(data.test_labels),
        num_clients=config.num_clients,
        shards=config.shards,
        alpha=config.alpha,
        classes_per_client=int(config.classes_per_client),
        sigma=config.unbalanced_sigma,
        lda_cap=config.lda_cap,
        pooled=config.pool_data is True,
        own=own,
        seed=numpy_rng(int(config.partition_seed), Stream.PARTITION),
    )


def data_hash(data: Dataset, partition: Partition) -> str:
    """Return a hash of all labels, of who has which samples, and of mean and deviation.

    Mean and deviation count to 6 digits: processors add numbers up in different orders.
    """
    hasher = hashlib.sha256()
    for parts in ([data.train_labels], [data.test_labels], partition.train, partition.test):
        sizes = np.array([len(part) for part in parts])
        for numbers in (sizes, np.concatenate(parts)):
            hasher.update(numbers.astype("<i8").tobytes())
    statistics = " ".join(f"{value:.6f}" for value in (*data.mean, *data.std))
    hasher.update(statistics.encode())
    return hasher.hexdigest()[:16]
