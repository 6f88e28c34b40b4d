"""What "auto" means for the keys of the data: the papers' choices by data set and partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedapp.data.partition import PARTITIONS
from fedapp.settings import usual_name

if TYPE_CHECKING:
    from fedapp.config import RunConfig

CLASSES_PER_CLIENT = {"cifar100": 10, "flowers102": 10, "tiny-imagenet": 20}  # FedDOR; others: 2
PARTITION_SEED = 1  # of pooled data: one division of the data for all seeds of a run


def pools_data(partition: str) -> bool:
    """Return whether clients of a partition divide training and test images alike, pooled."""
    return partition in PARTITIONS and PARTITIONS[partition].pools


def partition_settings(config: RunConfig) -> dict[str, Any]:
    """Return the values of the partition's keys where they are "auto"."""
    pools = config.pool_data
    if pools == "auto":
        pools = pools_data(config.partition)
    return {
        "normalisation": "symmetric" if pools else "dataset",
        "classes_per_client": CLASSES_PER_CLIENT.get(usual_name(config.dataset), 2),
        "pool_data": pools,
        "partition_seed": PARTITION_SEED if pools else config.seed,
    }
