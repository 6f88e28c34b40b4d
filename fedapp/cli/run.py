"""The commands for one run: start it, explain its configuration, show its partition.

Slow imports are inside the commands, so that `--help` is fast.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedapp.cli.options import AsJson, Overrides, Project, say, show, write_png
from fedapp.config.overrides import is_file, read_overrides
from fedapp.config.project import merge
from fedapp.engines.launch import run as simulate
from fedapp.engines.resources import Engine, Resources, check_in_process, check_simulated
from fedapp.results.formatting import clock, megabytes, stored_size

if TYPE_CHECKING:
    from fedapp.config.run_config import RunConfig
    from fedapp.runtime.server.forecast import Forecast


def run(
    config: Overrides = None,
    project: Project = Path("."),
    nodes: Annotated[int, typer.Option(min=0, help="Virtual SuperNodes; 0: one per worker.")] = 0,
    workers: Annotated[
        int, typer.Option(min=0, help="Worker processes; 0: one per core, or four per GPU.")
    ] = 0,
    gpus: Annotated[
        float, typer.Option(min=-1.0, help="GPU share per worker; -1: workers share all GPUs.")
    ] = -1.0,
    engine: Annotated[
        Engine | None,
        typer.Option(
            help="Where nodes run, with equal results; ray is the default with RAY_ADDRESS."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check the configuration, estimate time and memory; stop."),
    ] = False,
) -> None:
    """Simulate a run with virtual SuperNodes, on worker processes of this machine or on Ray.

    Example: fedapp run -c "method='fedntd' num-rounds=50" -c presets/mine.toml
    """
    texts = config or []
    task = project, read_overrides(texts), Resources(nodes, workers, gpus)
    typed = list(read_overrides([text for text in texts if not is_file(text)]))
    if check:
        _check(*task, typed, engine)
        return
    if engine == Engine.IN_PROCESS:
        from fedapp.engines.in_process import run_in_process  # imports PyTorch

        raise SystemExit(run_in_process(*task, typed))
    raise SystemExit(simulate(*task, engine, typed=typed))


def _check(
    project: Path,
    overrides: dict[str, Any],
    resources: Resources,
    typed: list[str],
    engine: Engine | None,
) -> None:
    """Print what a configuration resolves to and what the run will cost; start nothing."""
    from fedapp.config.effect import without_effect  # imports PyTorch
    from fedapp.config.resolve import load_run_config, parse_config, rate_note  # imports PyTorch
    from fedapp.results.trackers import check_tracker
    from fedapp.runtime.server.forecast import (  # imports PyTorch
        forecast,
        own_steps_note,
        time_note,
    )
    from fedapp.runtime.server.opening import check_place  # imports PyTorch
    from fedapp.server_app import closed_at_the_end, user_callbacks  # imports PyTorch

    values = load_run_config(project, overrides)
    resolved = parse_config(values)
    check_place(resolved)
    check_tracker(resolved.tracker)
    check_simulated(resolved.num_clients, resolved.partition)
    with closed_at_the_end(user_callbacks(resolved.callbacks)):
        pass  # they can be made
    workers = _workers(engine, resources, resolved.flat())
    cost = forecast(resolved, workers)
    facts = _facts(resolved, cost, workers).items()
    show("This run is possible", [{"": name, "value": value} for name, value in facts], False)
    costs = own_steps_note(cost, resolved), time_note(cost, resolved)
    for note in (rate_note(values, resolved), *costs, without_effect(typed, resolved)):
        if note:
            say(note)


def _facts(resolved: "RunConfig", cost: "Forecast", workers: int) -> dict[str, str]:
    """Return what a resolved run trains and costs, in words."""
    return {
        "method": resolved.method,
        "data": f"{resolved.dataset}, {resolved.num_clients} clients ({resolved.partition})",
        "model": f"{resolved.model_group or resolved.model}, {cost.parameters:,} parameters",
        "training": f"{resolved.num_rounds} rounds, {resolved.local_epochs} local epochs, batches "
        f"of {resolved.batch_size}, lr {resolved.lr:g} ({resolved.lr_schedule})",
        "images": f"{cost.images_per_round:,} per round, {cost.images_per_second:,.0f} per second "
        "and process, as measured just now",
        "time": f"about {clock(cost.seconds)} on {workers} processes, "
        f"{cost.seconds_per_round:.3g} s per round",
        "memory": f"about {megabytes(cost.memory)}",
        "traffic": _traffic(cost),
        "client states": "none" if cost.state is None else stored_size(cost.state),
    }


def _traffic(cost: "Forecast") -> str:
    """Return what clients and server send in a round, and what of it is not counted."""
    size = megabytes(cost.bytes_per_round)
    models = f"models of {size} per round" if cost.bytes_per_round else ""
    besides = f"not counted: {cost.besides}" if cost.besides else ""
    return "; ".join(filter(None, (models, besides))) or "none"


def _workers(engine: Engine | None, resources: Resources, values: Mapping[str, Any]) -> int:
    """Return how many processes train."""
    if engine == Engine.IN_PROCESS:
        check_in_process(resources, str(values["device"]))
        return 1
    return resources.resolve_for(values).workers


def config(
    key: Annotated[
        str, typer.Argument(help="A key to explain; default: list all that apply.")
    ] = "",
    config: Overrides = None,
    project: Project = Path("."),
    everything: Annotated[
        bool, typer.Option("--all", help="List also the keys that do not apply here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the configuration keys that apply, with their values and origins, or explain one key.

    Example: fedapp config -c "dataset='cifar10' method='fedntd'"
    """
    from fedapp.cli import config_pages as pages  # imports PyTorch

    rows = pages.rows(project, config or [])
    if key:
        show("", pages.page(key, rows), as_json)
    elif as_json:
        show("", rows, True)
    else:
        listed = [row for row in rows if everything or row["applies"]]
        for group, members in pages.by_group(listed).items():
            show(group, members, False)
        more = (
            f"{len(rows) - len(listed)} keys that do not apply here: --all. "
            if len(rows) > len(listed)
            else ""
        )
        say(f"{more}fedapp config KEY explains a key.")


SplitFile = Annotated[
    Path | None, typer.Option(help="JSON file for the split, to be used as partition-file.")
]


def partition(
    config: Overrides = None,
    project: Project = Path("."),
    plot: Annotated[Path | None, typer.Option(help="PNG file for the distribution.")] = None,
    images: Annotated[Path | None, typer.Option(help="PNG file for some clients' images.")] = None,
    save: SplitFile = None,
    only_kinds: Annotated[bool, typer.Option("--list", help="List the partitions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print and plot the number of training images per client and class.

    Example: fedapp partition -c "partition='lda' alpha=0.1 num-clients=10" --plot clients.png
    """
    import numpy as np

    from fedapp.cli.listing import client_rows, kind_rows
    from fedapp.config.resolve import parse_config  # imports PyTorch
    from fedapp.data.partition.split_file import write_split
    from fedapp.results.plots.client_images import client_images
    from fedapp.results.plots.client_plots import label_distribution
    from fedapp.runtime.process.run_data import load_partition, some_images  # imports PyTorch

    if only_kinds:
        show("Partitions", kind_rows(), as_json)
        return
    resolved = parse_config(merge(project, read_overrides(config or [])))
    data, parts = load_partition(resolved)
    counts = parts.class_counts(np.asarray(data.train_labels), data.num_classes)
    rows = client_rows(counts, list(map(len, parts.test)), data.classes, nested=as_json)
    show(f"Training images of each client ({resolved.partition})", rows, as_json)
    if plot is not None:
        write_png(label_distribution(counts, data.classes), plot)
    if images is not None:
        write_png(client_images(some_images(resolved, data, parts)), images)
    if save is not None:
        write_split(save, parts)
        print(f"wrote {save.absolute()}", file=sys.stderr)
    for note in parts.notes:
        print(f"note: {note}", file=sys.stderr)
