"""A data set whose images are in a folder for each client, so that nothing is divided."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedapp.core.arrays import Arrays
from fedapp.core.errors import UserError
from fedapp.data.partition.assignment import Indices, Partition

_MOST_NAMES = 20  # in one sentence


@dataclass(frozen=True)
class ClientFolders:
    """The clients of a data set whose arrays have the images of one client after the other.

    Attributes:
        names: of the clients' folders, by client id.
        train_sizes: number of training images of each client.
        test_sizes: number of test images of each client.
    """

    names: tuple[str, ...]
    train_sizes: Indices
    test_sizes: Indices

    def as_arrays(self) -> Arrays:
        """Return the values as arrays, for the cache."""
        sizes = {"train_sizes": self.train_sizes, "test_sizes": self.test_sizes}
        return {"client_names": np.array(self.names), **sizes}

    @classmethod
    def taken_from(cls, arrays: Arrays) -> "ClientFolders | None":
        """Take what `as_arrays` gave out of `arrays`; return None if there is nothing."""
        if "client_names" not in arrays:
            return None
        names = tuple(str(name) for name in arrays.pop("client_names"))
        return cls(names, arrays.pop("train_sizes"), arrays.pop("test_sizes"))


def by_folder(folders: ClientFolders | None) -> Partition:
    """Give every client the images of its folder, in their order there.

    Raises UserError for a data set without such folders.
    """
    if folders is None:
        raise UserError("partition 'folders' needs dataset 'images' with a folder for each client")
    train, test = _consecutive(folders.train_sizes), _consecutive(folders.test_sizes)
    return Partition(train, test, notes=(f"the clients from 0 on: {listed(folders.names)}",))


def listed(names: Sequence[str]) -> str:
    """Return the names in one text, of many only the first."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _consecutive(sizes: Indices) -> list[Indices]:
    """Return consecutive positions from 0, in parts of these sizes."""
    return np.split(np.arange(sizes.sum(), dtype=np.int64), np.cumsum(sizes)[:-1])
