"""The commands that list the available methods, presets and data sets.

Slow imports are inside the commands, so that `--help` is fast.
"""

import json
from types import ModuleType
from typing import Annotated

import typer

from fedapp.cli.options import AsJson, say, show
from fedapp.config.presets import preset_rows
from fedapp.core.errors import UserError


def methods(
    name: Annotated[str, typer.Argument(help="A method, for its page; default: the list.")] = "",
    family: Annotated[
        str, typer.Option(help="List only global, personalised or heterogeneous methods.")
    ] = "",
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the Markdown table of docs/methods.md.")
    ] = False,
) -> None:
    """List the methods by family, or show one: its parts, keys, settings and published numbers.

    Example: fedapp methods feddr+
    """
    from fedapp.cli import method_pages as pages  # imports PyTorch
    from fedapp.cli.listing import markdown_table, method_rows
    from fedapp.config.extensions import check_files

    check_files()
    if family and (name or as_markdown):
        raise UserError("--family is for the list of methods: leave it out here")
    if as_markdown:
        print(markdown_table())
    elif name:
        _show_method(pages, name, as_json)
    elif as_json:
        wanted = {row["method"] for _, rows in pages.families(family) for row in rows}
        show("", [row for row in method_rows() if row["method"] in wanted], True)
    else:
        for title, rows in pages.families(family):
            show(title, rows, False)
        say("fedapp methods NAME shows one of them.")


def _show_method(pages: ModuleType, name: str, as_json: bool) -> None:
    from fedapp.methods.table import find_method

    row = find_method(name)
    found = {
        "parts": pages.parts(name, row),
        "keys of its own": pages.keys(row),
        "settings at 'auto'": pages.settings(name, row),
        "published numbers": pages.published(name),
    }
    commands = pages.commands(name, found["published numbers"])
    if as_json:
        print(json.dumps({"method": name, "title": row.title, **found, "commands": commands}))
        return
    say(f"{name}: {row.title}")
    for title, rows in found.items():
        if rows:
            show(title, rows, False)
    for command in commands:
        print(f"  {command}")


def presets(as_json: AsJson = False) -> None:
    """List the presets, the protocols of the papers; pass a name to -c.

    Example: fedapp run -c fedntd-cifar10-lda -c "method='fedavg' data-dir='data'"
    """
    show("Presets", list(preset_rows()), as_json)


def datasets(as_json: AsJson = False) -> None:
    """List the data sets, with the layout of their files.

    Example: fedapp datasets
    """
    from fedapp.config.extensions import DATASETS, check_files  # imports PyTorch

    check_files()
    rows = [
        {
            "dataset": name,
            "classes": info.num_classes or "any",
            "image": info.image_size or "any",
            "training": info.train_images or "any",
            "test": info.test_images or "any",
            "source": info.source,
            "layout": info.layout,
        }
        for name, info in DATASETS.items()
    ]
    show("Data sets", rows, as_json)
