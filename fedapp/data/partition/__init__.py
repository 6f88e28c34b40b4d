"""The partition of a data set over clients, as pure functions of its labels."""

from fedapp.data.partition.personal_splits import dirichlet, pathological
from fedapp.data.partition.splits import iid, lda, shards
from fedapp.data.partition.table import PARTITIONS, PartitionSpec, make_partition

__all__ = [
    "PARTITIONS",
    "PartitionSpec",
    "dirichlet",
    "iid",
    "lda",
    "make_partition",
    "pathological",
    "shards",
]
