"""Whether an earlier run used the user's files as they are now."""

from fedapp.config.run_config import RunConfig
from fedapp.data.partition.split_file import find_split, source
from fedapp.results.run_directory import RunDirectory


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
