"""What a run will cost: time, memory and traffic, from a second of training in this process."""

import time
from dataclasses import dataclass, replace
from itertools import cycle, islice

import psutil
import torch

from clients.base import LocalClient
from clients.training.arrays import nbytes, to_arrays
from clients.training.evaluation import predict
from clients.training.local_training import Batches, train
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.rng import cohort_size
from fedapp.runtime.process.client_roles import mean_epochs
from fedapp.runtime.process.context import ProcessContext
from strategies.rounds.transport import array_bytes

LEAST_SECONDS, MOST_STEPS = 1.0, 200  # of training that is measured


@dataclass(frozen=True)
class Forecast:
    """The expected cost of one run; a client of average size stands for all."""

    images_per_round: int  # that all clients of a cohort train on
    images_per_second: float  # of one process
    seconds_per_round: float
    seconds: float
    memory: int  # bytes of all processes together
    bytes_per_round: int  # of models that clients send and receive
    besides: str  # what else they send, which is not counted; empty: nothing else
    parameters: int
    own_steps: bool  # whether the clients' steps are others than those that are measured
    state: int | None  # bytes that all clients keep on disk, at most; 0: unknown; None: none


def forecast(config: RunConfig, workers: int) -> Forecast:
    """Train and test for a moment, and extrapolate to the whole run on `workers` processes.

    Raises:
        UserError: the data or the model of the configuration cannot be loaded, or no client has
            images to train on.
    """
    imported = psutil.Process().memory_info().rss  # shared: workers are forks of one process
    if config.threads:
        torch.set_num_threads(config.threads)
    process = ProcessContext(config)
    sizes = [len(part) for part in process.data.partition.train]
    if not sum(sizes):
        raise UserError(
            f"partition is '{config.partition}': the training images are on the clients' hosts, so "
            "the cost of a run cannot be estimated here; the configuration itself is valid"
        )
    cohort = cohort_size(config.training_clients, config.participation)
    training = sizes[: config.training_clients]
    images = round(sum(training) / len(training) * cohort * mean_epochs(config))
    speed = _training_speed(process, max(range(len(sizes)), key=sizes.__getitem__))
    test = _test_seconds(process) / config.eval_every
    per_round = images / (speed * min(workers, cohort)) + test
    shared = nbytes(process.slot.shared.values())
    sent = array_bytes(process.codec.form(to_arrays(process.slot.shared)))
    own = max(0, psutil.Process().memory_info().rss - imported)
    return Forecast(
        images_per_round=images,
        images_per_second=speed,
        seconds_per_round=per_round,
        seconds=per_round * config.num_rounds,
        memory=imported + own * (workers + 1),
        bytes_per_round=(shared + sent) * cohort,
        besides=_besides(process),
        parameters=sum(p.numel() for p in process.model.parameters()),
        own_steps=_has_own_steps(process.method.client.kind),
        state=process.state_bytes() if process.keeps else None,
    )


def _besides(process: ProcessContext) -> str:
    """Return what clients send besides shared tensors, which have the scale of a head."""
    parts = process.method.exchange.also_sends.split(", ")
    return ", ".join(part for part in parts if part != "scale")


def own_steps_note(cost: Forecast, config: RunConfig) -> str:
    """Return a note if clients of the method do not take the steps that are measured."""
    if not cost.own_steps:
        return ""
    return (
        f"clients of method '{config.method}' have local steps of their own, and the time is that "
        "of plain training steps: theirs may take less, or several times as long"
    )


def _has_own_steps(kind: type[LocalClient]) -> bool:
    return kind.run is not LocalClient.run or kind.gradients is not LocalClient.gradients


def time_note(cost: Forecast, config: RunConfig) -> str:
    """Return a warning if a round is expected to exceed its time limit; empty: it is not."""
    if cost.seconds_per_round <= config.round_timeout:
        return ""
    return (
        f"a round will take about {cost.seconds_per_round:,.0f} s, and round-timeout ends it after "
        f"{config.round_timeout:g} s, without the clients that have not answered: raise "
        "round-timeout"
    )


def _training_speed(process: ProcessContext, number: int) -> float:
    """Return how many images per second a client trains on, by its method's objective."""
    client = process.client(number)
    one_epoch = replace(process.settings, epochs=1)
    batches = list(islice(cycle(client.data.training(1)()), 4))
    if not batches:
        raise UserError(
            "the cost of a run cannot be estimated: no client has a full batch of "
            f"{process.config.batch_size} images, so none would train; lower batch-size"
        )
    objective = client.objective
    frozen = client.frozen_models()
    train(client.model, frozen, objective, lambda: batches[:1], 0.0, one_epoch)  # warms up
    start, images = time.perf_counter(), 0
    for _ in range(MOST_STEPS // len(batches)):
        images += train(client.model, frozen, objective, lambda: batches, 0.0, one_epoch).images
        if time.perf_counter() - start > LEAST_SECONDS:
            break
    return images / (time.perf_counter() - start)


def _test_seconds(process: ProcessContext) -> float:
    """Return how long a test of one model on the whole test set takes, from its first batch."""
    batches: Batches = process.data.test_batches()
    start = time.perf_counter()
    first = next(iter(predict(process.model, batches)), None)
    if first is None:
        return 0.0
    factor = len(process.data.test_labels()) / len(first.labels)
    return (time.perf_counter() - start) * factor
