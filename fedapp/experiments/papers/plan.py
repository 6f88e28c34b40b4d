"""The plan for reproducing a table: its runs, images and hours, and what cannot run and why.

The plan comes from the same functions as the runs, so it shows exactly the runs that would start.
The name of a run consists of paper, table, cell, scale and seed, so that a second execution of a
plan finds the runs of the first.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedapp.config.effect import without_effect
from fedapp.config.key_groups import MACHINE, RECORDING, marked_keys
from fedapp.config.resolve import parse_config
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.paths import folder_name
from fedapp.core.rng import sample_clients
from fedapp.data.datasets import DATASETS, find_dataset, load_dataset
from fedapp.data.partition.personal_splits import TRAIN_FRACTION
from fedapp.experiments.papers.cells import Cell
from fedapp.experiments.papers.metrics import PAPER_METRICS
from fedapp.experiments.papers.protocol import Reason, predicts_by_the_global_model
from fedapp.methods.table import find_method, kept_by_clients

_OWN_OPTIONS = {  # keys that a plan sets itself, and what to use instead
    "num-rounds": "use --scale, a factor of the published number", "seed": "use --seeds",
    "dataset": "use --dataset-as", "data-dir": "use --data-dir", "download": "use --download",
    "output-dir": "use --output-dir",
    "run-name": "cells have names of their own", "resume": "every run resumes by itself",
}  # fmt: skip
_CHECKPOINTS = 10  # per run, so that an interrupted run loses at most a tenth


@dataclass(frozen=True)
class Request:
    """The user's settings for the runs of cells.

    Attributes:
        output_dir: folder of the run directories and results.csv.
        scale: factor of the number of rounds; 1 gives the published number.
        seeds: of each cell; (): 0 to N-1, where N is the number of seeds of the paper's mean.
        data_dir: folder of the data set.
        dataset_as: name in fedapp of another local copy of the same data set.
        download: fetch missing public data sets.
        changes: further keys that differ from the paper's.
    """

    output_dir: Path
    scale: float = 1.0
    seeds: tuple[int, ...] = ()
    data_dir: str = ""
    dataset_as: str = ""
    download: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise UserError(f"--scale is {self.scale:g} but must be above 0 and at most 1")
        if self.dataset_as:
            find_dataset(self.dataset_as)
        for key in [key for key in self.changes if key in _OWN_OPTIONS]:
            raise UserError(f"-c cannot name '{key}': {_OWN_OPTIONS[key]}")

    def label(self) -> str:
        """Return the differences from the published setting as text; "" if there are none."""
        parts = [f"rounds x {self.scale:g}"] if self.scale != 1 else []
        parts += [f"data from '{self.dataset_as}'"] if self.dataset_as else []
        return ", ".join([*parts, *self.changed()])

    def changed(self) -> list[str]:
        """Return "key=value" for each of the changes, in the order of the keys."""
        return [f"{key}={value}" for key, value in sorted(self.changes.items())]


@dataclass(frozen=True)
class PlannedRun:
    """One seed of one cell."""

    cell: Cell
    seed: int
    request: Request

    @cached_property
    def overrides(self) -> dict[str, Any]:
        """Every key of the run that the paper, the request or the run directory determines."""
        assert self.cell.config is not None
        keys = {**self.cell.config, **self.request.changes}
        keys["num-rounds"] = max(1, round(keys["num-rounds"] * self.request.scale))
        keys["dataset"] = self.request.dataset_as or keys["dataset"]
        kept = kept_by_clients(keys)
        return {
            **keys,
            "seed": self.seed,
            "data-dir": self.request.data_dir,
            "download": self.request.download,
            "checkpoint-every": 1 if kept else max(1, keys["num-rounds"] // _CHECKPOINTS),
            "output-dir": str(self.request.output_dir),
            "run-name": self.name,
            "resume": "auto",
            **self.request.changes,  # also a checkpoint-every of the user's own
            **self._analyses(),
        }

    def _analyses(self) -> dict[str, str]:
        """Return the measures of the request and those that the published number needs."""
        assert self.cell.config is not None
        texts = [each.get("analyses", "") for each in (self.cell.config, self.request.changes)]
        words = dict.fromkeys(" ".join(texts).split())
        return {"analyses": " ".join(words)} if words else {}

    @property
    def configuration(self) -> dict[str, Any]:
        """The overrides, and the default of every other key that may change a result.

        Thus no edited pyproject.toml changes a run; only its machine and recording keys count.
        """
        free = {*marked_keys(RunConfig, MACHINE, RECORDING), "device"}
        every = RunConfig.defaults()
        return {key: every[key] for key in every if key not in free} | self.overrides

    @property
    def name(self) -> str:
        """The run directory's name."""
        request = self.request
        words = [self.cell.paper, self.cell.table, *self.cell.name.split()]
        words += [f"x{request.scale:g}"] if request.scale != 1 else []
        words += [f"on-{request.dataset_as}"] if request.dataset_as else []
        words += ["with", "+".join(request.changed())] if request.changes else []
        return folder_name("-".join(words), f"-seed{self.seed}")

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.request.output_dir / self.name

    @property
    def images(self) -> int | None:
        """The approximate number of training images; None if the data set's size is unknown."""
        assert self.cell.config is not None
        config, info = resolved(self), find_dataset(str(self.cell.config["dataset"]))
        if not info.train_images:
            return None
        total = info.pooled_images * TRAIN_FRACTION if config.pool_data else info.train_images
        cohort = len(sample_clients(0, 1, config.num_clients, config.participation))
        share = cohort / config.num_clients
        return round(total * share * int(config.local_epochs) * config.num_rounds)

    def command(self) -> str:
        """Return the exact command of this run, for the project's folder."""
        return f"fedapp run {config_option(self.overrides)}"


def config_option(keys: Mapping[str, Any]) -> str:
    """Return keys as the option -c of the command line, quoted for a shell."""
    pairs = " ".join(f"{key}={_toml(value)}" for key, value in keys.items())
    return f"-c {shlex.quote(pairs)}" if set(pairs) & set('"$`\\!') else f'-c "{pairs}"'


def _toml(value: Any) -> str:
    if isinstance(value, str) and "'" not in value:
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False)  # true, 0.1 and "text" are TOML as well


def runs_of(cell: Cell, request: Request) -> list[PlannedRun]:
    """Return a cell's runs, one per seed."""
    return [PlannedRun(cell, seed, request) for seed in request.seeds or range(cell.seeds)]


def check_changes(cells: Iterable[Cell], request: Request) -> None:
    """Raise UserError if a cell's configuration is not valid with the request's changes.

    A method of another kind is refused: its accuracy would stand beside a published one of other
    models on other images.
    """
    for cell in cells:
        if not request.changes or cell.config is None:
            continue
        config = resolved(runs_of(cell, request)[0])
        own, published = find_method(config.method), find_method(str(cell.config["method"]))
        if own.accuracy != published.accuracy:
            raise UserError(
                f"-c method='{request.changes['method']}': its accuracy is that of the "
                f"{own.accuracy}, but the cell '{cell.name}' has that of the {published.accuracy}"
            )
        by_global = [predicts_by_the_global_model(row) for row in (own, published)]
        personal = config.finetune_epochs or by_global[0] != by_global[1]
        if PAPER_METRICS[cell.measure].asks_clients and personal:
            key = "finetune-epochs" if config.finetune_epochs else "method"
            raise UserError(
                f"-c {key}={request.changes.get(key)!r}: clients would test models of their own, "
                f"but the cell '{cell.name}' has the accuracy of the global model"
            )


def idle_changes(cells: Iterable[Cell], request: Request) -> list[str]:
    """Return the keys of the request's changes that have no effect in any of the cells."""
    able = [cell for cell in cells if cell.config is not None]
    configs = [resolved(runs_of(cell, request)[0]) for cell in able if request.changes]
    return [key for key in request.changes if all(without_effect([key], c) for c in configs)]


def with_data(cells: Iterable[Cell], request: Request) -> list[Cell]:
    """Mark the cells whose data set is missing as cells that cannot run, with the reason.

    Raises:
        UserError: `dataset_as` would replace two data sets.
    """
    all_cells = list(cells)
    problems = data_problems(all_cells, request)
    available = [name for name, problem in problems.items() if not problem]
    if request.dataset_as and len(available) > 1:
        raise UserError(
            f"--dataset-as {request.dataset_as} is a copy of one data set, but the cells are of "
            f"{' and '.join(available)}; choose some with --cell"
        )
    return [
        replace(cell, config=None, reason=Reason.DATA, detail=problem)
        if cell.config is not None and (problem := problems[str(cell.config["dataset"])])
        else cell
        for cell in all_cells
    ]


def data_problems(cells: Iterable[Cell], request: Request) -> dict[str, str]:
    """Return the problem with each data set of the cells on this machine, or "", by its name."""
    names = sorted({str(cell.config["dataset"]) for cell in cells if cell.config is not None})
    return {name: _data_problem(name, request) for name in names}


def _data_problem(published: str, request: Request) -> str:
    """Return the problem with the data on this machine, or ""."""
    try:
        changes = {key.replace("-", "_"): value for key, value in request.changes.items()}
        options = {key: changes[key] for key in ("image_size", "test_share") if key in changes}
        name = request.dataset_as or published
        data = load_dataset(name, request.data_dir, request.download, **options)
    except UserError as error:
        return str(error)
    info = DATASETS[published]
    size = info.train_images or len(data.train_labels)
    actual = (data.num_classes, data.image_size, len(data.train_labels))
    expected = (info.num_classes, info.image_size, size)
    if actual == expected:
        return ""
    template = "{} classes, {} pixels, {} training images"
    return (
        f"'{request.dataset_as or published}' has {template.format(*actual)}, but {published} has "
        f"{template.format(*expected)}"
    )


def plan_rows(
    cells: Sequence[Cell], request: Request, images_per_second: float
) -> list[dict[str, Any]]:
    """Return one row per cell: runs, images, hours (if a speed is given), or why it cannot run."""
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
    """Return the published number as "mean ± std", or as "failed"."""
    row = cell.row
    if row.mean is None:
        return "failed" if row.failed else None
    text = f"{row.mean:g}" if row.std is None else f"{row.mean:g} ± {row.std:g}"
    return f"{text} (failed)" if row.failed else text


def resolved(run: PlannedRun) -> RunConfig:
    """Return the whole configuration of a run."""
    return parse_config(run.overrides)
