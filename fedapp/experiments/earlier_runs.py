"""Whether an earlier run stands: how it ended, and whether the user's files are as they were."""

from fedapp.config.run_config import RunConfig
from fedapp.data.partition.split_file import find_split, source
from fedapp.results.run_directory import RunDirectory


def outcome(run: RunDirectory) -> str:
    """Return "completed", or "diverged", which a run would do again; "" if it has not ended."""
    summary = run.summary()
    if summary.get("status") == "completed":
        return "completed"
    return "diverged" if summary.get("diverged") else ""


def changed_file(run: RunDirectory, config: RunConfig) -> str:
    """Return "the split a.json 12ab instead of b.json 34cd" for a changed file; "" for none."""
    now = {"extension": config.extension(), "split": "none"}
    if config.partition_file:
        now["split"] = source(find_split(config.partition_file, config.data_dir))
    before = run.used_files()
    for kind, current in now.items():
        if (earlier := before.get(kind, "none")) != current:
            return f"the {kind} {earlier} instead of {current}"
    return ""
