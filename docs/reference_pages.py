"""The site's pages that are made from code: configuration keys and commands."""

import click
import typer

from fedapp.cli.app import app
from fedapp.cli.config_pages import allowed
from fedapp.config.key_groups import kebab
from fedapp.config.run_config import RunConfig, group_of
from fedapp.config.run_keys import KEY_GROUPS
from fedapp.methods import METHODS

TITLES = {
    "method": "Method",
    "data": "Data",
    "partition": "Partition",
    "model": "Model",
    "training": "Training",
    "evaluation": "Evaluation",
    "output": "Output",
    "robustness": "Robustness",
    "privacy": "Privacy",
}


def keys() -> str:
    """Return the page of all run-config keys, by group, and of the methods' own ones."""
    fields = {kebab(name): field for name, field in RunConfig.model_fields.items()}
    owners = {key: name for name, row in reversed(METHODS.items()) for key in row.keys}
    parts = [
        "# Configuration keys\n",
        'Set a key with `-c "key=value"` or in a TOML file. `fedapp config` shows the keys that '
        "apply to your configuration and where their values come from.\n",
    ]
    for group in KEY_GROUPS:
        shared = [key for key in fields if group_of(key) == group and key not in owners]
        parts.append(f"## {TITLES[group]}\n")
        parts.append(_table({key: fields[key] for key in shared}))
    parts.append("## Keys of single methods\n")
    parts.append(_table({key: fields[key] for key in fields if key in owners}, owners))
    return "\n".join(parts)


def _table(fields: dict, owners: dict[str, str] | None = None) -> str:
    head = ["key", "default", "values", "meaning"] + (["first method"] if owners else [])
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for key, field in fields.items():
        cells = [f"`{key}`", f"`{field.default!r}`", allowed(key), field.description]
        cells += [f"`{owners[key]}`"] if owners else []
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join([*lines, ""])


def commands() -> str:
    """Return the page of all commands, from their help texts."""
    group = typer.main.get_command(app)
    parts = ["# Commands\n", "`fedapp COMMAND --help` prints the same in a terminal.\n"]
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            for sub, each in command.commands.items():
                parts.append(_command(f"{name} {sub}", each))
        else:
            parts.append(_command(name, command))
    return "\n".join(parts)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"fedapp {name}")
    text, _, example = (command.help or "").partition("Example: ")
    usage = " ".join([f"fedapp {name}", *command.collect_usage_pieces(context)])
    lines = [f"## fedapp {name}\n", text.strip(), f"\n```\n{usage}\n```\n"]
    if example:
        lines.append(f"Example:\n\n```\n{' '.join(example.split())}\n```\n")
    lines += ["| argument or option | meaning |", "|---|---|"]
    for parameter in command.params:
        if record := getattr(parameter, "get_help_record", lambda _: None)(context):
            words, meaning = (part.replace("|", "\\|") for part in record)
            lines.append(f"| `{words}` | {meaning} |")
    return "\n".join([*lines, ""])


PAGES = {"reference/keys": keys, "reference/commands": commands}
