"""The workloads of a benchmark: the full plan and the quick plan.

The sizes are the papers' (10 clients with 500 images per round, batches of 50), reduced if one
measurement would take minutes. The quick plan takes about ten minutes on two cores.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fedapp.models.groups import MODEL_GROUPS


@dataclass(frozen=True)
class Workload:
    """Rounds in which each of `clients` clients trains on `images` images for `epochs` epochs."""

    clients: int = 10
    images: int = 500
    epochs: int = 5
    batch_size: int = 50
    rounds: int = 3  # of one run; the first is not counted
    plain_seconds: float = 10.0  # for each layout of the plain loop


@dataclass(frozen=True)
class Point:
    """One run of the scale part; each client has `images` images and trains one epoch."""

    clients: int
    cohort: int
    workers: int = 0  # 0: one per core
    images: int = 10
    batch_size: int = 10
    rounds: int = 4


@dataclass(frozen=True)
class Plan:
    """All parts of a benchmark."""

    repeats: int = 3
    models: tuple[str, ...] = ("cnn", "mobilenet", "vgg11", "resnet18", "tiny")  # or groups
    methods: tuple[str, ...] = ("fedavg", "fedntd", "feddr+", "scaffold", "feddor")
    whole: tuple[str, ...] = ("cnn",)  # models with all methods in every repeat; see `asked`
    tax: Workload = Workload()
    heavy: Workload = Workload(epochs=1, rounds=2)  # of larger models than the CNN
    heaviest: Workload = Workload(images=200, epochs=1, rounds=2)
    cost: Workload = Workload(clients=4, images=250, epochs=1)
    megabytes: tuple[float, ...] = (0.001, 1, 4, 40, 100)
    message_clients: int = 10
    message_rounds: int = 6
    scale: tuple[Point, ...] = field(
        default=(
            Point(1000, 10), Point(1000, 100), Point(1000, 1000), Point(100, 10),
            Point(10_000, 10), Point(1000, 100, workers=1),
        )
    )  # fmt: skip
    # the job used to compare research simulators: 5 steps per client
    job: Point = Point(1000, 50, images=50, rounds=12)

    @property
    def backbone(self) -> str:
        """The model of the parts that measure only one."""
        return next((model for model in self.models if model not in MODEL_GROUPS), "cnn")

    def asked(self, model: str, methods: Sequence[str], repeat: int) -> Sequence[str]:
        """Return the methods of one repeat of the FL tax.

        Large models have only the first method after the first repeat, because each run takes
        minutes.
        """
        return methods if repeat == 0 or model in self.whole else methods[:1]

    def workload(self, model: str) -> Workload:
        """Return the FL tax's workload for a model."""
        return {"cnn": self.tax, "resnet18": self.heaviest}.get(model, self.heavy)


FULL = Plan()
QUICK = replace(
    FULL,
    repeats=1,
    models=("cnn",),
    methods=("fedavg", "feddr+"),
    tax=Workload(plain_seconds=5.0),
    heavy=replace(FULL.heavy, plain_seconds=5.0),
    heaviest=replace(FULL.heaviest, plain_seconds=5.0),
    cost=replace(FULL.cost, images=150),
    message_rounds=3,
    scale=(Point(100, 10), Point(1000, 10), Point(5000, 10)),
    job=replace(FULL.job, rounds=4),
)
