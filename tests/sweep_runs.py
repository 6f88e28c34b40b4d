"""A quick sweep for several test files: its plan, and a runner that trains nothing."""

from pathlib import Path

from fedapp.config.resolve import parse_config
from fedapp.experiments import sweep
from fedapp.results.run_directory import RunDirectory

ROOT = Path(__file__).parents[1]
BASE = {"num-rounds": 2, "num-clients": 10}
VARY = {"method": ("fedavg", "feddr+"), "lr": (0.01, 0.1)}


class FakeRunner:
    """Stands in for `launch.run`: writes what a run leaves behind."""

    def __init__(self, failing=(), diverging=()):
        self.failing, self.diverging, self.started = failing, diverging, []

    def __call__(self, project, values, resources):
        name = values["run-name"]
        self.started.append(name)
        config = parse_config(values).flat()
        run = RunDirectory.create(values["output-dir"], name, config, resume=True)
        diverged = name in self.diverging
        failed = diverged or name in self.failing
        accuracy = 0.5 + 0.1 * values["seed"]
        run.write_summary(
            {
                "status": "failed" if failed else "completed",
                "reason": "too few replies" if failed else "",
                "seed": values["seed"],
                "accuracy_final": None if failed else accuracy,
                "accuracy_best": accuracy,
                "best_round": 1,
                "seconds": 3.0,
                "diverged": diverged,
            }
        )
        return int(failed)


def make_plan(folder, base=BASE, vary=VARY, seeds=(0, 1)):
    return sweep.plan(ROOT, base, vary, seeds, folder)
