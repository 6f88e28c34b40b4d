"""Write the tables that are made from the method table and the configuration: `make tables`.

They are the run-config keys in pyproject.toml, and the tables of methods in README.md and
docs/methods.md. With --check nothing is written, and the exit code says whether anything differs.
"""

import re
import sys
from pathlib import Path

import tomli_w

from fedapp.cli.listing import markdown_table
from fedapp.config.run_config import RunConfig
from fedapp.methods import METHODS

ROOT = Path(__file__).parents[1]


def keys() -> str:
    """Return `[tool.flwr.app.config]` with every key and its default."""
    return f"[tool.flwr.app.config]\n{tomli_w.dumps(RunConfig().flat())}"


def methods() -> str:
    """Return the README's table: what each method is."""
    rows = [f"| `{name}` | {row.title} |" for name, row in METHODS.items()]
    return "\n".join(["| method | what it is |", "|---|---|", *rows, ""])


def pages() -> dict[Path, str]:
    """Return the content that each page should have."""
    columns = r"\| method \| title \|[^\n]*\n(?:\|[^\n]*\n)*"
    parts = {
        "pyproject.toml": (r"\[tool\.flwr\.app\.config\]\n(?:[^\n\[]+\n)*", keys()),
        "README.md": (r"\| method \| what it is \|\n(?:\|[^\n]*\n)*", methods()),
        "docs/methods.md": (columns, markdown_table() + "\n"),
    }
    found = {}
    for name, (pattern, table) in parts.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        made, count = re.subn(pattern, lambda _, table=table: table, text)
        if count != 1:
            raise SystemExit(f"{name} has {count} tables like {pattern!r} and must have one")
        found[ROOT / name] = made
    return found


def main() -> None:
    """Write what differs, or with --check report it."""
    differing = {p: text for p, text in pages().items() if p.read_text(encoding="utf-8") != text}
    for path, text in differing.items():
        print(f"{path.relative_to(ROOT)} {'differs' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if differing and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
