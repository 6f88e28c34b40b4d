"""The data of a run: read once per process, divided among the clients, compared between hosts.

Every host draws the whole partition from its own copy of the data. One additional file on a host
changes its whole partition, so that clients of two hosts could share images. The server therefore
compares the copies by a hash before round 1.
"""

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedapp.config.run_config import RunConfig
from fedapp.core.rng import Stream, numpy_rng
from fedapp.data.dataset import Dataset
from fedapp.data.datasets import load_dataset
from fedapp.data.feature_skew import FeatureSkew
from fedapp.data.partition.assignment import Indices
from fedapp.data.partition.long_tail import long_tailed
from fedapp.data.partition.split_file import find_split
from fedapp.data.partition.table import Partition, PartitionSpec, make_partition
from fedapp.data.readers.held_out import held_out


@lru_cache(maxsize=1)
def _dataset(name: str, data_dir: str, download: bool, **options: Any) -> Dataset:
    return load_dataset(name, data_dir, download, **options)


def clear_data_cache() -> None:
    """Drop the data set that this process has read, so that the next load reads the files again."""
    _dataset.cache_clear()


def load_partition(config: RunConfig) -> tuple[Dataset, Partition]:
    """Load a configuration's data and draw its partition."""
    data = load_run_dataset(config)
    return data, draw_partition(config, data)


def load_run_dataset(config: RunConfig, data_dir: str = "") -> Dataset:
    """Load a configuration's data set, pooled and normalised as configured.

    `data_dir` overrides the configuration's.

    Raises:
        UserError: as `load_dataset`.
    """
    folder = data_dir or config.data_dir
    data = _dataset(
        config.dataset, folder, config.download, class_list=config.class_list,
        classes=config.classes, image_size=config.image_size, test_share=config.test_share,
        clients=config.num_clients if config.partition == "folders" else 0,
    )  # fmt: skip
    if config.pool_data is True:
        data = data.pooled()
    if config.validation_share:
        data = data.tested_on_training_images()
    return data.symmetric() if config.normalisation == "symmetric" else data


def draw_partition(
    config: RunConfig, data: Dataset, own: int | None = None, data_dir: str = ""
) -> Partition:
    """Draw a configuration's partition; `own` is the client to which all of `data` belongs.

    `data_dir` overrides the configuration's, where a relative `partition-file` is looked for.

    Raises:
        UserError: these labels do not allow the split, or its file is missing or wrong.
    """
    spec = _spec(config, data, own, data_dir)
    rng = numpy_rng(int(config.partition_seed), Stream.PARTITION)
    train, test = np.asarray(data.train_labels), np.asarray(data.test_labels)
    if config.imbalance_factor == 1 and not config.validation_share:
        return make_partition(config.partition, train, test, spec, rng)
    kept, tests = _chosen(config, train, test)
    drawn = make_partition(config.partition, train[kept], test[tests], spec, rng)
    return replace(
        drawn,
        train=[kept[part] for part in drawn.train],
        test=[tests[part] for part in drawn.test],
        tests=tests if config.validation_share else None,
    )


def _spec(config: RunConfig, data: Dataset, own: int | None, data_dir: str) -> PartitionSpec:
    listed = config.partition_file
    return PartitionSpec(
        num_clients=config.num_clients,
        shards=config.shards,
        alpha=config.alpha,
        classes_per_client=int(config.classes_per_client),
        sigma=config.unbalanced_sigma,
        lda_cap=config.lda_cap,
        own=own,
        file=find_split(listed, data_dir or config.data_dir) if listed else Path(),
        pooled=config.pool_data is True,
        class_names=data.classes,
        folders=data.folders,
    )


def _chosen(config: RunConfig, train: np.ndarray, test: np.ndarray) -> tuple[Indices, Indices]:
    """Return the images to train and to test on: validation images, a long tail, or all.

    With validation images both label arrays are those of the training images.
    """
    kept, tests = np.arange(len(train)), np.arange(len(test))
    if config.validation_share:
        held = held_out(train, config.validation_share, "validation-share")
        kept, tests = np.flatnonzero(~held), np.flatnonzero(held)
    if config.imbalance_factor > 1:
        rng = numpy_rng(int(config.partition_seed), Stream.LONG_TAIL)
        kept = kept[long_tailed(train[kept], config.imbalance_factor, rng)]
    return kept, tests


def feature_skew(config: RunConfig) -> FeatureSkew | None:
    """Return how the clients' images differ; None: they do not."""
    if config.feature_skew == "none":
        return None
    return FeatureSkew(
        config.feature_skew,
        config.feature_skew_level,
        config.num_clients,
        int(config.partition_seed),
    )


def some_images(
    config: RunConfig, data: Dataset, partition: Partition, clients: int = 8, images: int = 10
) -> dict[int, np.ndarray]:
    """Return training images of some clients as they have them: uint8 [n, H, W, channels] each.

    At most `clients` clients, from the first to the last, and `images` images of each.
    """
    skew, chosen = feature_skew(config), {}
    for client in _spread(len(partition.train), clients).tolist():
        members = partition.train[client]
        source = skew.view(data.train_images, client, "train") if skew else data.train_images
        chosen[client] = source[members[_spread(len(members), images)]]
    return chosen


def _spread(count: int, most: int) -> Indices:
    """Return at most `most` of the numbers 0 to count - 1, at equal distances."""
    return np.unique(np.linspace(0, max(0, count - 1), min(count, most)).astype(np.int64))


def data_hash(data: Dataset, partition: Partition) -> str:
    """Return two hashes, "A:B": of all labels, the partition and statistics, and of the images.

    The statistics are mean and deviation, rounded to 6 digits, because processors add in different
    orders. Of images that are decoded when they are used, B is that of the names.
    """
    hasher = hashlib.sha256()
    for parts in ([data.train_labels], [data.test_labels], partition.train, partition.test):
        sizes = np.array([len(part) for part in parts])
        for numbers in (sizes, np.concatenate(parts)):
            hasher.update(numbers.astype("<i8").tobytes())
    statistics = " ".join(f"{value:.6f}" for value in (*data.mean, *data.std))
    hasher.update(statistics.encode())
    return f"{hasher.hexdigest()[:16]}:{data.digest[:16]}"
