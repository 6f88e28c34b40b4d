"""The data of a run in one process: who has which images, and batches of them on the device.

Every client's batches are a function of the seed, the round and the client, so any process that has
the data gives the same ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from clients.training.local_training import Batches
from clients.training.model_slot import ClientData
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, torch_rng, torch_seed
from fedapp.data.batches.in_memory import ClientBatches, batch_bounds, full_batch_bounds
from fedapp.data.batches.serving import plain_batches, training_batches
from fedapp.data.batches.streamed import StreamedBatches
from fedapp.data.datasets import Dataset
from fedapp.data.partition.stochastic import dropped_class
from fedapp.data.partition.table import Partition
from fedapp.runtime.run_data import data_hash

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class BatchSettings:
    """How images become batches, apart from which images."""

    seed: int  # of the run
    size: int  # images in a training batch
    augmentation: str  # words of fedapp.data.batches
    drop_last: bool  # leave out a last batch that is not full
    alone: bool  # with drop_last: a client with fewer images than a batch trains on what it has
    shuffle: bool  # draw the order of every epoch
    decode_threads: int
    test_size: int  # images in a test batch whose own statistics normalise it; 0: no such model
    dropped_every: int  # stochastic clients: a class is dropped in every so many rounds; 0: never
    dropped_from: int  # the first round in which that happens
    two_images: str = ""  # the model whose BatchNorm needs two images of every client; empty: none


class FederatedData:
    """A data set, its partition over clients, and the batches of each client."""

    def __init__(
        self, dataset: Dataset, partition: Partition, batches: BatchSettings, device: torch.device
    ) -> None:
        """Take a loaded data set; images are moved to the device when a client first needs them."""
        self.dataset, self.partition, self.settings, self.device = (
            dataset, partition, batches, device,
        )  # fmt: skip
        self._batches: dict[int, ClientBatches | StreamedBatches] = {}
        self._class_counts = torch.from_numpy(self.class_counts()[0]).to(device)
        self._everyone_tests = partition.everyone_tests()

    def client(self, client: int) -> ClientData:
        """Return one client's examples, as functions that give batches."""
        return ClientData(
            training=lambda server_round: self._epochs(client, server_round, Stream.BATCHES),
            tuning=lambda server_round: self._epochs(client, server_round, Stream.TUNING),
            examples=lambda: self.examples(client),
            test=lambda: self.test_batches(self._tested(client)),
            num_examples=len(self.partition.train[client]),
            class_counts=self._class_counts[client],
            seed=lambda r: torch_seed(self.settings.seed, Stream.LOCAL, r, client),
        )

    def examples(self, client: int) -> Batches:
        """Give a client's training examples in order, without augmentation."""
        return plain_batches(
            self.dataset, "train", self.partition.train[client], EVALUATION_BATCH, self.device,
            threads=self.settings.decode_threads,
        )  # fmt: skip

    def test_batches(self, members: np.ndarray | None = None) -> Batches:
        """Give the whole global test set, or the listed part of it, in batches on the device."""
        members = self._everyone_tests if members is None else members
        size = self.settings.test_size
        return plain_batches(
            self.dataset, "test", members, size or EVALUATION_BATCH, self.device,
            torch_seed(0, Stream.EVALUATION) if size else None, self.settings.decode_threads,
        )  # fmt: skip

    def test_labels(self) -> np.ndarray:
        """Return the labels of the whole global test set."""
        labels = self.dataset.test_labels
        return labels if self._everyone_tests is None else labels[self._everyone_tests]

    def class_counts(self) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        """Return training images [clients, classes], the classes' names, and test images."""
        data, parts = self.dataset, self.partition
        train = parts.class_counts(np.asarray(data.train_labels), data.num_classes)
        test = Partition(parts.test, []).class_counts(
            np.asarray(data.test_labels), data.num_classes
        )
        return train, tuple(data.classes), test

    def dropped_class(self, client: int, server_round: int) -> int | None:
        """Return the class that a stochastic client lacks in a round, if any."""
        labels = self.dataset.train_labels[self.partition.train[client]]
        batches = self.settings
        return dropped_class(
            labels, batches.seed, client, server_round, batches.dropped_every, batches.dropped_from
        )

    @cached_property
    def hash(self) -> str:
        """What server and nodes compare of their data: `run_data.data_hash`, computed once."""
        return data_hash(self.dataset, self.partition)

    def _epochs(self, client: int, server_round: int, stream: Stream) -> Callable[[], Batches]:
        """Return a function that gives one epoch of a client's batches after the other."""
        batches = self._client_batches(client)
        generator = torch_rng(self.settings.seed, stream, server_round, client)
        members = self._present(client, server_round)
        needing = self.settings.two_images
        if needing and len(batches if members is None else members) == 1:
            raise UserError(
                f"client {client} has one training image in round {server_round}, but model "
                f"'{needing}' has BatchNorm, which needs 2 of these images or more"
            )
        return lambda: batches.epoch(generator, members)

    def _present(self, client: int, server_round: int) -> torch.Tensor | None:
        """Return the client's samples that it has in this round, by position; None: all."""
        dropped = self.dropped_class(client, server_round)
        if dropped is None:
            return None
        labels = self.dataset.train_labels[self.partition.train[client]]
        return torch.from_numpy(np.flatnonzero(labels != dropped))

    def _client_batches(self, client: int) -> ClientBatches | StreamedBatches:
        if client not in self._batches:
            settings = self.settings
            # One image trains what it can, which BatchNorm in networks of the clients' own cannot.
            bounds = full_batch_bounds if settings.drop_last else batch_bounds
            self._batches[client] = training_batches(
                self.dataset, self.partition.train[client], settings.size, settings.augmentation,
                self.device, settings.decode_threads, partial(bounds, alone=settings.alone),
                settings.shuffle,
            )  # fmt: skip
        return self._batches[client]

    def _tested(self, client: int) -> np.ndarray:
        """Return a client's test images; a single one is none where BatchNorm needs two."""
        members = self.partition.test[client]
        alone = self.settings.two_images and self.settings.test_size and len(members) == 1
        return members[:0] if alone else members
