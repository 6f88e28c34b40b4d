"""The commands that list the available methods, presets and data sets.

Slow imports are inside the commands, so that `--help` is fast.
"""

from typing import Annotated

import typer

from fedapp.cli.options import AsJson, show
from fedapp.config.presets import preset_rows


def methods(
    as_json: AsJson = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the Markdown table of docs/methods.md.")
    ] = False,
) -> None:
    """List the methods: head, loss, regulariser, strategy, sent arrays, defaults, source.

    Example: fedapp methods --json
    """
    from fedapp.cli.listing import markdown_table, method_rows  # imports PyTorch

    if as_markdown:
        print(markdown_table())
    else:
        show("Methods", method_rows(), as_json)


def presets(as_json: AsJson = False) -> None:
    """List the presets, the protocols of the papers; pass a name to -c.

    Example: fedapp run -c fedntd-cifar10-lda -c "method='fedavg' data-dir='data'"
    """
    show("Presets", list(preset_rows()), as_json)


def datasets(as_json: AsJson = False) -> None:
    """List the data sets, with the layout of their files.

    Example: fedapp datasets
    """
    from fedapp.config.extensions import DATASETS  # imports PyTorch

    rows = [
        {
            "dataset": name,
            "classes": info.num_classes or "any",
            "image": info.image_size or "any",
            "source": info.source,
            "layout": info.layout,
        }
        for name, info in DATASETS.items()
    ]
    show("Data sets", rows, as_json)


COMMANDS = (methods, presets, datasets)
