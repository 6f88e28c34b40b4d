"""The commands that start many runs: sweeps and benchmarks.

Slow imports are inside the commands, so that `--help` is fast.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedapp.cli.options import AsJson, Jobs, Project, say, show
from fedapp.config.overrides import is_file, read_overrides
from fedapp.engines.resources import Resources

if TYPE_CHECKING:
    from fedapp.experiments.sweep import SweepRun

Vary = Annotated[
    list[str] | None, typer.Option(help='A key and its values, "key=value,value"; may be repeated.')
]


def sweep(
    name: Annotated[str, typer.Option(help="Name of the sweep; its runs go to OUTPUT-DIR/NAME/.")],
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="Configuration of all runs, as for `fedapp run`."),
    ] = None,
    vary: Vary = None,
    seeds: Annotated[str, typer.Option(help="Of all combinations, as 0,1,2 or 0-2.")] = "0",
    output_dir: Annotated[Path, typer.Option(help="Parent of the sweep's folder.")] = Path("runs"),
    project: Project = Path("."),
    jobs: Jobs = 0,
    only_plan: Annotated[bool, typer.Option("--plan", help="Only check and list them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run all combinations of values with all seeds. Repeat the command to continue.

    Example: fedapp sweep -c "num-rounds=20" --vary "method=fedavg,feddr+" --seeds 0,1 --name demo
    """
    from fedapp.experiments import sweep as sweeps
    from fedapp.experiments.sweep_options import parse_seeds, parse_vary, refuse_own

    varied = parse_vary(vary or [])
    typed = read_overrides([text for text in config or [] if not is_file(text)])
    refuse_own("-c", typed, varied)
    runs = sweeps.plan(
        project, read_overrides(config or [], more=True), varied,
        parse_seeds(seeds), sweeps.sweep_folder(output_dir, name),
    )  # fmt: skip
    for note in sweeps.without_effect(runs, typed):
        print(note, file=sys.stderr) if as_json else say(note)
    if only_plan or not as_json:
        show("Plan", sweeps.planned(runs), as_json)
    if not only_plan:
        _execute(name, project, runs, jobs, as_json)


def _execute(
    name: str, project: Path, runs: "list[SweepRun]", jobs: int, as_json: bool
) -> NoReturn:
    """Execute a sweep and show its results; exit with 1 unless all runs are completed."""
    from fedapp.experiments import sweep as sweeps
    from fedapp.experiments.best_values import best_values

    rows = sweeps.execute(project, runs, Resources(), jobs=jobs)
    summary = sweeps.summarise(rows)
    if as_json:
        print(json.dumps({"combinations": summary, "runs": rows}, indent=2))
    else:
        show(f"Sweep {name}: mean ± standard deviation", sweeps.readable(summary), False)
        if sentence := best_values(runs, summary):
            say(sentence)
    raise SystemExit(0 if all(row["status"] == "completed" for row in rows) else 1)


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="One repeat with few rounds: about ten minutes.")
    ] = False,
    model: Annotated[list[str] | None, typer.Option(help="A backbone; may be repeated.")] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="tax, methods, precision, engine, scale or gpu; may be repeated; default: all."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for bench.json, bench.md and bench.png; default: a new one."),
    ] = None,
    project: Project = Path("."),
    as_json: AsJson = False,
) -> None:
    """Measure the cost of federated rounds beyond their arithmetic, as ratios from one call.

    Example: fedapp bench --quick --part tax --model cnn
    """
    from dataclasses import replace

    from fedapp.experiments.bench import plan, suite
    from fedapp.experiments.bench.tables import markdown

    chosen = plan.QUICK if quick else plan.FULL
    chosen = replace(chosen, models=tuple(model or chosen.models))
    folder = output_dir or Path("runs") / time.strftime("bench-%Y%m%d-%H%M%S")
    found = suite.bench(project, chosen, part or [], folder)
    print(f"results in {folder.absolute()}", file=sys.stderr)
    print(json.dumps(found, indent=2) if as_json else markdown(found))
