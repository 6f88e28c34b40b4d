"""What `fedapp methods` prints: the list of methods by family, and the page of one method."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fedapp.cli.listing import method_row
from fedapp.config.auto import is_ordinary
from fedapp.config.extensions import METHODS
from fedapp.config.key_groups import kebab
from fedapp.config.paper_settings import SETTINGS, Rate, Setting
from fedapp.core.errors import UserError
from fedapp.experiments.papers.cells import cells_of
from fedapp.experiments.papers.tables import all_papers
from fedapp.methods.row import FAMILIES, Method
from fedapp.models.backbones import fitting_backbones

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


def families(only: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each family, or one, with a row per method: name, title, and paper with its year.

    Raises:
        UserError: `only` is no family.
    """
    if only and only not in FAMILIES:
        raise UserError(f"--family is '{only}' but must be one of {', '.join(FAMILIES)}")
    for family, meaning in FAMILIES.items():
        if not only or family == only:
            rows = [_listed(n, row) for n, row in METHODS.items() if row.family == family]
            yield f"{family}: {meaning}", rows


def parts(name: str, row: Method) -> list[dict[str, str]]:
    """Return what a method consists of, as rows of part and value."""
    text = method_row(name, row)
    found = {
        "family": f"{row.family}: {FAMILIES[row.family]}",
        "source": text["source"],
        "head": text["head"],
        "local loss": text["combined"],
        "client": text["client"],
        "server": text["strategy"],
        "clients send": text["sends"],
        "clients keep": text["keeps"],
        "accuracy of": row.accuracy,
        "rates of": row.settings_of or name,
        "defaults": text["defaults"] if row.defaults else "",
        "fixed": " ".join(f"{kebab(key)}={value}" for key, value in row.fixed.items()),
    }
    return [{"part": part, "value": value} for part, value in found.items() if value]


def keys(row: Method) -> list[dict[str, Any]]:
    """Return a method's own run-config keys with their defaults."""
    return [
        {"key": key, "default": each.default, "meaning": each.meaning}
        for key, each in row.keys.items()
    ]


def settings(name: str, row: Method) -> list[dict[str, Any]]:
    """Return what "auto" means for a method on each data set and model that a paper states."""
    if row.family == "heterogeneous":
        return []
    of = row.settings_of or name
    return [
        {
            "data set": dataset,
            "model": model,
            **_training(setting, setting.rate(of, is_ordinary(of, row)), row),
        }
        for (dataset, model), setting in SETTINGS.items()
        if model in fitting_backbones(row.needs)
    ]


def _training(setting: Setting, rate: Rate, row: Method) -> dict[str, Any]:
    """Return how a method trains in a published setting; its own defaults win."""
    own = {kebab(key): value for key, value in {**row.defaults, **row.fixed}.items()}
    return {
        "lr": own.get("lr", rate.value),
        "rate": row.source if "lr" in own else rate.origin,
        "epochs": own.get("local-epochs", setting.local_epochs),
        "batch": own.get("batch-size", setting.batch_size),
        "schedule": own.get("lr-schedule", setting.lr_schedule),
        "augmentation": own.get("augmentation", setting.augmentation),
    }


def published(name: str) -> list[dict[str, Any]]:
    """Return the published tables that have the method, each with its first cell that can run."""
    rows = []
    for paper in all_papers():
        for table in paper.tables:
            cells = [cell for cell in cells_of(paper, table) if cell.row.method == name]
            able = [cell for cell in cells if cell.config is not None]
            if cells:
                example = (able or cells)[0]
                rows.append(
                    {
                        "paper": paper.name,
                        "table": table.id,
                        "numbers": len(cells),
                        "can run": len(able),
                        "a cell": example.name,
                        "published": example.row.mean,
                    }
                )
    return rows


def commands(name: str, tables: list[dict[str, Any]]) -> list[str]:
    """Return commands to copy: a run, and the training of a published number."""
    found = [f"fedapp run -c \"method='{name}'\""]
    for row in tables:
        if row["can run"]:
            cell = f'{row["paper"]} {row["table"]} --cell "{row["a cell"]}"'
            return [*found, f"fedapp reproduce {cell} --data-dir DIR"]
    return found


def _listed(name: str, row: Method) -> dict[str, Any]:
    year = _YEAR.search(row.source)
    paper = row.source[: year.end()] if year else re.split("[,;]", row.source)[0]
    return {"method": name, "title": row.title, "paper": paper}
