"""The summary of a whole run, for summary.json, the console and the report."""

import importlib.metadata
import os
import shlex
import sys
import time
from typing import Any

import fedapp
from clients.base import LocalClient
from fedapp.config.run_config import RunConfig
from fedapp.core.extension_files import VARIABLE
from fedapp.methods.row import CLIENT_MEAN, CLIENT_TOTAL, GLOBAL
from fedapp.results.class_accuracy import class_accuracy_measures
from fedapp.results.comparison.convergence import accuracy_last10
from fedapp.results.outcome import best_round
from fedapp.results.plots.curves import GLOBAL_MODEL
from fedapp.runtime.callbacks.base import ActiveRun
from fedapp.runtime.process.context import ProcessContext
from fedapp.runtime.process.earlier_run import recorded_files
from fedapp.runtime.process.evaluation import at_chance

_SUMMED = ("wait_seconds", "test_seconds", "bytes_down", "bytes_up")
_TESTED = {
    GLOBAL: GLOBAL_MODEL,
    CLIENT_MEAN: "personal models, mean over clients",
    CLIENT_TOTAL: "personal models, all test images",
}
_CHANCE = "the final accuracy is no better than chance"
_FINE_TUNED, _PERSONAL, _ONE = "fine-tuned models", "personal models", "the global model"


def refused(
    config: RunConfig, process: ProcessContext, reason: str, seconds: float
) -> dict[str, Any]:
    """Return the summary of a run that ends after so many seconds, before it trains anything."""
    return {
        "method": config.method,
        "dataset": config.dataset,
        "model": process.title,
        "seed": config.seed,
        "rounds": 0,
        "status": "failed",
        "reason": reason,
        "seconds_total": seconds,
    }


def summarise(run: ActiveRun, status: str, reason: str) -> dict[str, Any]:
    """Return the summary of the whole run, including the earlier rounds of a resumed run."""
    config, process, rows = run.config, run.process, run.rows()
    evaluated = [row for row in rows if row["accuracy"] is not None]
    best = best_round(rows)
    seconds = sum(row["seconds"] for row in rows)
    images = sum(row["images"] for row in rows)  # 0: the clients do not tell
    ok = status == "completed"
    chance = ok and _at_chance(process, evaluated)
    return {
        "method": config.method,
        "dataset": config.dataset,
        "model": process.title,
        "seed": config.seed,
        "rounds": len(rows),
        "accuracy_of": _TESTED[process.method.accuracy]
        + (", validation images" if config.validation_share else ""),
        "accuracy_final": evaluated[-1]["accuracy"] if evaluated and ok else None,
        "accuracy_last10": accuracy_last10(rows) if ok else None,
        "accuracy_best": best.get("accuracy"),
        "best_round": best.get("round"),
        "status": status,
        "reason": reason
        or (
            _CHANCE if chance else _incomplete(evaluated, run.config.training_clients) if ok else ""
        ),
        "at_chance": chance,
        "seconds": seconds,
        "seconds_total": seconds + _overhead(run, rows),
        "images_per_second": images / seconds if images and seconds else None,
        **{key: sum(row.get(key, 0) for row in rows) for key in _SUMMED},
        "device": str(process.device),
        "versions": {
            **_versions(),
            **recorded_files(process),
        },
        "command": _command(run),
        **_last_clients(process, rows),
        **class_accuracy_measures(config.analyses, rows),
    }


def _at_chance(process: ProcessContext, evaluated: list[dict[str, Any]]) -> bool:
    """Return whether the final global model is no better than chance, as after a divergence."""
    is_global = process.method.accuracy == GLOBAL
    labels = process.data.test_labels()
    return is_global and bool(evaluated) and at_chance(evaluated[-1]["accuracy"], labels)


def _incomplete(evaluated: list[dict[str, Any]], training: int) -> str:
    """Return a sentence if the final accuracy is not of all clients that may train."""
    last = evaluated[-1] if evaluated else {}
    lacking = sum(client < training for client in last.get("unevaluated", []))
    if not lacking:
        return ""
    every = lacking + last.get("client_count", 0)
    return f"the final accuracy is that of {every - lacking} of {every} clients"


def _overhead(run: ActiveRun, rows: list[dict[str, Any]]) -> float:
    """Return the seconds of this process outside its rounds."""
    own = sum(row["seconds"] for row in rows if row["round"] >= run.first_round)
    return time.monotonic() - run.started - own


def _last_clients(process: ProcessContext, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the results of the last evaluation on the clients' own test splits, if any."""
    evaluated = [row for row in rows if "client_accuracy_mean" in row]
    if not evaluated:
        return {}
    last = {k: v for k, v in evaluated[-1].items() if k.startswith("client_") and "bytes" not in k}
    return {**last, "client_accuracy_of": _models_of_clients(process)}


def _models_of_clients(process: ProcessContext) -> str:
    """Return which models were tested on the clients' own test splits."""
    method = process.method
    if process.slot.tuning:
        return _FINE_TUNED
    own_logits = method.client.kind.logit_scale is not LocalClient.logit_scale
    return _PERSONAL if method.accuracy != GLOBAL or own_logits else _ONE


def _command(run: ActiveRun) -> str:
    """Return the command that repeats the run, in a directory of its own, from any folder."""
    files = os.pathsep.join(str(file.path) for file in run.config.own_files())
    variable = f"{VARIABLE}={shlex.quote(files)} " if files else ""
    config = shlex.quote(str(run.directory.path / "config.toml"))
    return f"{variable}fedapp run -c {config} -c \"run-name=''\""


def _versions() -> dict[str, str]:
    names = ("flwr", "torch", "numpy")
    installed = {name: importlib.metadata.version(name) for name in names}
    return {"fedapp": fedapp.__version__, "python": sys.version.split()[0], **installed}
