"""What reproducing a table takes: its runs, what cannot run and why, images, and hours.

A plan is made before anything starts, from the same functions that make the runs, so what it prints
is what would run. Every run has a name of its own, made of paper, table, cell, scale and seed: a
plan that is carried out twice finds the runs of the first time.
"""

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapp.config.auto import pools_data
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.paths import folder_name
from fedapp.core.rng import sample_clients
from fedapp.data.datasets import DATASETS, load_dataset
from fedapp.data.partition.personal_splits import TRAIN_FRACTION
from fedapp.experiments.papers.cells import Cell
from fedapp.experiments.papers.protocol import Reason
from fedapp.experiments.papers.tables import unknown
from fedapp.methods.table import kept_by_clients

TRAIN_IMAGES = {
    "cifar10": 50_000, "cifar100": 50_000, "mnist": 60_000, "fashion-mnist": 60_000,
    "cinic10": 90_000, "tiny-imagenet": 100_000, "flowers102": 2_040,
}  # fmt: skip
POOLED_IMAGES = {  # training and test images together; Tiny-ImageNet pools its training images
    **TRAIN_IMAGES, "cifar10": 60_000, "cifar100": 60_000, "mnist": 70_000,
    "fashion-mnist": 70_000, "cinic10": 180_000, "flowers102": 8_189,
}  # fmt: skip
_CHECKPOINTS = 10  # per run, so that an interrupted run loses at most a tenth


@dataclass(frozen=True)
class Request:
    """How a user wants cells to be run.

    Attributes:
        output_dir: where the run directories and results.csv go.
        scale: multiplies the number of rounds; 1 is the published number.
        seeds: seeds 0..N-1; 0: as many as the paper's number is a mean of.
        data_dir: folder of the data set.
        dataset_as: another local copy of the same data set, by its name in fedapp.
        download: fetch public data sets that are not there.
    """

    output_dir: Path
    scale: float = 1.0
    seeds: int = 0
    data_dir: str = ""
    dataset_as: str = ""
    download: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise UserError(f"--scale is {self.scale:g} but must be above 0 and at most 1")
        if self.seeds < 0:
            raise UserError(f"--seeds is {self.seeds} but must be 1 or more")
        if self.dataset_as and self.dataset_as not in DATASETS:
            raise unknown("--dataset-as: data set", self.dataset_as, DATASETS)

    def label(self) -> str:
        """Say in words how results differ from the published setting; empty if they do not."""
        parts = [f"rounds x {self.scale:g}"] if self.scale != 1 else []
        parts += [f"data from '{self.dataset_as}'"] if self.dataset_as else []
        return ", ".join(parts)


@dataclass(frozen=True)
class PlannedRun:
    """One seed of one cell."""

    cell: Cell
    seed: int
    request: Request

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Every key of the run that the paper, the request or its place decides."""
        assert self.cell.config is not None
        keys = dict(self.cell.config)
        keys["num-rounds"] = max(1, round(keys["num-rounds"] * self.request.scale))
        keys["dataset"] = self.request.dataset_as or keys["dataset"]
        kept = kept_by_clients(keys)
        return {
            **keys,
            "seed": self.seed,
            "data-dir": self.request.data_dir,
            "download": self.request.download,
            "checkpoint-every": 1 if kept else keys["num-rounds"] // _CHECKPOINTS,
            "output-dir": str(self.request.output_dir),
            "run-name": self.name,
            "resume": "auto",
        }

    @property
    def name(self) -> str:
        """The run directory's name."""
        request = self.request
        words = [self.cell.paper, self.cell.table, *self.cell.name.split()]
        words += [f"x{request.scale:g}"] if request.scale != 1 else []
        words += [f"on-{request.dataset_as}"] if request.dataset_as else []
        return folder_name("-".join([*words, f"seed{self.seed}"]))

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.request.output_dir / self.name

    @property
    def images(self) -> int | None:
        """Roughly how many images are trained on; None where the data set's size is not known."""
        assert self.cell.config is not None
        keys, name = self.overrides, str(self.cell.config["dataset"])
        if name not in TRAIN_IMAGES:
            return None
        pools = pools_data(str(keys.get("partition")))
        total = POOLED_IMAGES[name] * TRAIN_FRACTION if pools else TRAIN_IMAGES[name]
        cohort = len(sample_clients(0, 1, keys["num-clients"], keys["participation"]))
        share = cohort / keys["num-clients"]
        return round(total * share * keys["local-epochs"] * keys["num-rounds"])

    def command(self) -> str:
        """Return the exact command of this run, to be typed in the project's folder."""
        pairs = " ".join(f"{key}={_toml(value)}" for key, value in self.overrides.items())
        quoted = shlex.quote(pairs) if set(pairs) & set('"$`\\!') else f'"{pairs}"'
        return f"fedapp run -c {quoted}"


def _toml(value: Any) -> str:
    if isinstance(value, str) and "'" not in value:
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)  # true, 0.1 and "text" are TOML as well


def runs_of(cell: Cell, request: Request) -> list[PlannedRun]:
    """Return a cell's runs, one per seed."""
    return [PlannedRun(cell, seed, request) for seed in range(request.seeds or cell.seeds)]


def with_data(cells: Iterable[Cell], request: Request) -> list[Cell]:
    """Mark the cells whose data set is not here as cells that cannot run, and say what is missing.

    Raises:
        UserError: `dataset_as` would stand for two data sets.
    """
    every = list(cells)
    names = sorted({str(cell.config["dataset"]) for cell in every if cell.config is not None})
    problems = {name: _data_problem(name, request) for name in names}
    here = [name for name in names if not problems[name]]
    if request.dataset_as and len(here) > 1:
        raise UserError(
            f"--dataset-as {request.dataset_as} is a copy of one data set, but the cells are of "
            f"{' and '.join(here)}; choose some with --cell"
        )
    return [
        replace(cell, config=None, reason=Reason.DATA, detail=problem)
        if cell.config is not None and (problem := problems[str(cell.config["dataset"])])
        else cell
        for cell in every
    ]


def _data_problem(published: str, request: Request) -> str:
    """Return what is wrong with the data on this machine, or an empty string."""
    try:
        data = load_dataset(request.dataset_as or published, request.data_dir, request.download)
    except UserError as error:
        return str(error)
    info = DATASETS[published]
    size = TRAIN_IMAGES.get(published, len(data.train_labels))
    found = (data.num_classes, data.image_size, len(data.train_labels))
    expected = (info.num_classes, info.image_size, size)
    if found == expected:
        return ""
    words = "{} classes, {} pixels, {} training images"
    return (
        f"'{request.dataset_as or published}' has {words.format(*found)}, but {published} has "
        f"{words.format(*expected)}"
    )


def plan_rows(
    cells: Sequence[Cell], request: Request, images_per_second: float
) -> list[dict[str, Any]]:
    """Return one line per cell: its runs, images, hours (if a speed is given), or why it cannot."""
    return [_plan_row(cell, request, images_per_second) for cell in cells]


def _plan_row(cell: Cell, request: Request, images_per_second: float) -> dict[str, Any]:
    runs = runs_of(cell, request) if cell.config is not None else []
    keys = runs[0].overrides if runs else {}
    images = sum(run.images or 0 for run in runs) or None
    row: dict[str, Any] = {
        "cell": cell.name,
        "published": published_text(cell),
        "runs": len(runs),
        "rounds": keys.get("num-rounds"),
        "million images": images and round(images / 1e6, 2),
    }
    if images_per_second > 0:
        row["hours"] = images and round(images / images_per_second / 3600, 2)
    why = f"{cell.reason}: {cell.detail}" if cell.reason else ""
    return {**row, "cannot run because": why or None}


def published_text(cell: Cell) -> str | None:
    """Write the published number as "mean ± std", or as "failed"."""
    row = cell.row
    if row.mean is None:
        return "failed" if row.failed else None
    text = f"{row.mean:g}" if row.std is None else f"{row.mean:g} ± {row.std:g}"
    return f"{text} (failed)" if row.failed else text


def resolved(run: PlannedRun) -> RunConfig:
    """Return the whole configuration that a run would have."""
    return parse_config(run.overrides)
