"""The data of a run in one process: the partition, and each client's batches on the device.

A client's batches are a function of the seed, the round and the client. Every process that has the
data therefore gives the same batches.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch

from clients.attacks import flipped, wrongly_labelled
from clients.training.local_training import Batches
from clients.training.model_slot import ClientData
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, torch_rng, torch_seed
from fedapp.data.batches.in_memory import ClientBatches, batch_bounds, full_batch_bounds
from fedapp.data.batches.serving import plain_batches, training_batches
from fedapp.data.batches.streamed import StreamedBatches
from fedapp.data.dataset import Dataset
from fedapp.data.feature_skew import FeatureSkew, Split
from fedapp.data.partition import stochastic
from fedapp.data.partition.table import Partition
from fedapp.runtime.process.run_data import data_hash

EVALUATION_BATCH = 500
KEPT_BYTES = 64 << 20  # of clients' images, padded and on the device, in each process


@dataclass(frozen=True)
class BatchSettings:
    """The settings that determine how a client's images become batches."""

    seed: int  # of the run
    size: int  # images in a training batch
    augmentation: str  # words of fedapp.data.batches
    drop_last: bool  # leave out a last batch that is not full
    # whether a client's only image is a batch; with own models BatchNorm needs two
    trains_on_one_image: bool
    shuffle: bool  # whether every epoch has a new random order
    decode_threads: int
    test_size: int  # images in a test batch if BatchNorm normalises by the batch; 0: it does not
    dropped_every: int  # stochastic clients: rounds until another class is dropped; 0: never
    dropped_from: int  # the first round in which a class is dropped
    # name of the model if its BatchNorm needs 2 images per client, otherwise empty
    batchnorm_model: str = ""
    mislabelled: frozenset[int] = frozenset()  # clients that train on wrong labels
    skew: FeatureSkew | None = None  # how the images of the clients differ


class FederatedData:
    """A data set, its partition over clients, and the batches of each client."""

    def __init__(
        self, dataset: Dataset, partition: Partition, settings: BatchSettings, device: torch.device
    ) -> None:
        """Keep a loaded data set; its images go to the device when a client first needs them."""
        self.dataset, self.partition, self.settings, self.device = (
            dataset, partition, settings, device,
        )  # fmt: skip
        self._batches: dict[int, ClientBatches | StreamedBatches] = {}  # the last used one last
        self._class_counts = torch.from_numpy(self.class_counts()[0]).to(device)
        self._global_test_set = partition.global_test_set()

    def client(self, client: int, server_round: int = 0) -> ClientData:
        """Return one client's data as functions that return batches.

        A stochastic client's class counts are those of the round (0: all its images). Its weight in
        a mean, `num_examples`, stays that of all its images.
        """
        counts, dropped = self._class_counts[client], self.dropped_class(client, server_round)
        if dropped is not None:
            counts = counts.clone()
            counts[dropped] = 0
        data = ClientData(
            training=lambda server_round: self._epochs(client, server_round, Stream.BATCHES),
            tuning=lambda server_round: self._epochs(client, server_round, Stream.TUNING),
            examples=lambda server_round: self.examples(client, server_round),
            mixed=lambda server_round: self.own_images(client, server_round),
            test=lambda: self._as_tested("test", self._test_members(client), client),
            num_examples=len(self.partition.train[client]),
            class_counts=counts,
            all_counts=self._class_counts[client],
            seed=lambda r: torch_seed(self.settings.seed, Stream.LOCAL, r, client),
        )
        return wrongly_labelled(data) if client in self.settings.mislabelled else data

    def examples(self, client: int, server_round: int) -> Batches:
        """Return a client's training examples of a round in order, without augmentation."""
        return plain_batches(
            self._seen_by(client), "train", self._members(client, server_round), EVALUATION_BATCH,
            self.device, threads=self.settings.decode_threads,
        )  # fmt: skip

    def own_images(self, client: int, server_round: int = 0) -> Batches:
        """Return a client's training images of a round (0: all of them), batched as tests are.

        Where BatchNorm normalises by the batch, its classes are thus mixed in every batch. They are
        not augmented, and have wrong labels if the client trains on such.
        """
        members = self._members(client, server_round)
        self._check_pair(client, len(members))
        batches = self._as_tested("train", members, client)
        wrong = client in self.settings.mislabelled
        return flipped(batches, self.dataset.num_classes) if wrong else batches

    def test_batches(self, members: np.ndarray | None = None) -> Batches:
        """Return batches of the global test set, or of its `members`, on the device."""
        return self._as_tested("test", self._global_test_set if members is None else members)

    def test_members(self) -> np.ndarray:
        """Return the positions of the global test set's images in the data set's test split."""
        chosen = self._global_test_set
        return np.arange(len(self.dataset.test_labels)) if chosen is None else chosen

    def test_labels(self) -> np.ndarray:
        """Return the labels of the whole global test set."""
        return np.asarray(self.dataset.test_labels[self.test_members()])

    def class_counts(self) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
        """Return training counts [clients, classes], class names and test counts of that shape."""
        data, parts = self.dataset, self.partition
        train = parts.class_counts(np.asarray(data.train_labels), data.num_classes)
        test = Partition(parts.test, []).class_counts(
            np.asarray(data.test_labels), data.num_classes
        )
        return train, tuple(data.classes), test

    def dropped_class(self, client: int, server_round: int) -> int | None:
        """Return the class that a stochastic client lacks in a round, if any."""
        labels = self.dataset.train_labels[self.partition.train[client]]
        seed, every = self.settings.seed, self.settings.dropped_every
        first = self.settings.dropped_from
        return stochastic.dropped_class(labels, seed, client, server_round, every, first)

    @cached_property
    def hash(self) -> str:
        """The hash that server and nodes compare: `run_data.data_hash`, computed once."""
        return data_hash(self.dataset, self.partition)

    def _epochs(self, client: int, server_round: int, stream: Stream) -> Callable[[], Batches]:
        """Return a function that returns the batches of a client's next epoch at every call."""
        batches = self._client_batches(client)
        generator = torch_rng(self.settings.seed, stream, server_round, client)
        members = self._present(client, server_round)
        count = len(batches if members is None else members)
        self._check_pair(client, count, f" in round {server_round}")
        return lambda: batches.epoch(generator, members)

    def _check_pair(self, client: int, count: int, when: str = "") -> None:
        """Raise UserError if a client has one image and BatchNorm needs two."""
        if count == 1 and (model := self.settings.batchnorm_model):
            raise UserError(
                f"client {client} has one training image{when}, but model '{model}' has BatchNorm, "
                "which needs 2 of these images or more"
            )

    def _seen_by(self, client: int | None) -> Dataset:
        """Return the data set with its images as a client has them; None: as they are."""
        data, skew = self.dataset, self.settings.skew
        if skew is None or client is None:
            return data
        return replace(
            data,
            train_images=skew.view(data.train_images, client, "train"),
            test_images=skew.view(data.test_images, client, "test"),
        )

    def _as_tested(
        self, split: Split, members: np.ndarray | None, client: int | None = None
    ) -> Batches:
        """Return images without augmentation, in batches of the test's size and mixed like them."""
        size = self.settings.test_size
        return plain_batches(
            self._seen_by(client), split, members, size or EVALUATION_BATCH, self.device,
            torch_seed(0, Stream.EVALUATION) if size else None, self.settings.decode_threads,
        )  # fmt: skip

    def _members(self, client: int, server_round: int) -> np.ndarray:
        """Return a client's training images of a round, as positions in the data set."""
        members, present = self.partition.train[client], self._present(client, server_round)
        return members if present is None else members[present.numpy()]

    def _present(self, client: int, server_round: int) -> torch.Tensor | None:
        """Return the positions of the samples that the client has in this round; None: all."""
        dropped = self.dropped_class(client, server_round)
        if dropped is None:
            return None
        labels = self.dataset.train_labels[self.partition.train[client]]
        return torch.from_numpy(np.flatnonzero(labels != dropped))

    def _client_batches(self, client: int) -> ClientBatches | StreamedBatches:
        """Return a client's batches, kept with those of the clients that were used last.

        A process that trains any client would otherwise end up with the whole training set.
        """
        batches = self._batches.pop(client, None)
        batches = self._new_batches(client) if batches is None else batches
        self._batches[client] = batches
        while len(self._batches) > 1 and sum(b.nbytes for b in self._batches.values()) > KEPT_BYTES:
            del self._batches[next(iter(self._batches))]
        return batches

    def _new_batches(self, client: int) -> ClientBatches | StreamedBatches:
        settings = self.settings
        divide = full_batch_bounds if settings.drop_last else batch_bounds
        bounds = partial(divide, keep_single=settings.trains_on_one_image)
        return training_batches(
            self._seen_by(client), self.partition.train[client], settings.size,
            settings.augmentation, self.device, settings.decode_threads, bounds, settings.shuffle,
        )  # fmt: skip

    def _test_members(self, client: int) -> np.ndarray:
        """Return a client's test images; none if there is one and BatchNorm needs two."""
        members = self.partition.test[client]
        too_few = self.settings.batchnorm_model and self.settings.test_size and len(members) == 1
        return members[:0] if too_few else members
