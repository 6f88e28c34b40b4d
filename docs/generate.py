"""Write the tables that come from the method table and the configuration: `make tables`.

These are the run-config keys in pyproject.toml, the method tables in README.md and docs/methods.md,
and the method names in the table of docs/security.md. With --check it writes nothing, and the exit
code is 1 if anything differs.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import tomli_w

from fedapp.cli.listing import markdown_table
from fedapp.config.run_config import RunConfig
from fedapp.methods import METHODS, Method
from fedapp.methods.row import FAMILIES
from fedapp.models.heads import find_kind

ROOT = Path(__file__).parents[1]
SENT = {  # (what a method sends, what it also sends) -> a row of docs/security.md
    ("model", ""): "the whole model",
    ("model", "a_i"): "the whole model and its number of steps",
    ("model", "u, u w"): "the whole model and the importance of its weights",
    ("all but normalisation", ""): "the model without its normalisation layers",
    ("nothing", "prototypes"): "class prototypes, no model",
    ("nothing", "prototypes, header"): "class prototypes, no model",
    ("nothing", "prototypes, counts"): "prototypes with counts",
    ("nothing", "one of the clusters' models"): "one of the clusters' models",
    ("nothing", "mean logits"): "mean logits of each class, no model",
    ("nothing", "compressed mentee"): "a second, small model",
    ("mentee", ""): "a second, small model",
    ("head", ""): "the head alone",
    ("head", "generator, label counts once"): "the head, and once its label counts",
    ("nothing", ""): "nothing",
}


def keys() -> str:
    """Return `[tool.flwr.app.config]` with every key and its default."""
    return f"[tool.flwr.app.config]\n{tomli_w.dumps(RunConfig().flat())}"


def methods() -> str:
    """Return the README's table: the methods of each family."""
    rows = [
        f"| {meaning} | {_names(n for n, row in METHODS.items() if row.family == family)} |"
        for family, meaning in FAMILIES.items()
    ]
    return "\n".join(["| family | methods |", "|---|---|", *rows, ""])


def _names(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in names)


def sent(row: Method) -> str:
    """Return the first cell of a method's row in docs/security.md."""
    if row.fixed.get("num_clients") == 1:
        return "model or body of the only client"
    if "control variates" in row.exchange.also_sends:
        return "model or body, and control variates"
    if row.exchange.sends == "body" and row.exchange.also_sends in ("", "scale"):
        return (
            "the body (the head is frozen)"
            if find_kind(row.head.name).frozen
            else "the body (the head stays personal)"
        )
    try:
        return SENT[row.exchange.sends, row.exchange.also_sends]
    except KeyError:
        raise SystemExit(
            f"docs/security.md has no row for clients that send '{row.exchange.sends}' and "
            f"'{row.exchange.also_sends}': write one, and add it to SENT in docs/generate.py"
        ) from None


def security(text: str) -> str:
    """Return docs/security.md with the methods of each row; X-ft reveals the same as X."""
    for cell in {sent(row) for row in METHODS.values()}:
        names = [n for n, row in METHODS.items() if sent(row) == cell and not row.fine_tuned]
        pattern = rf"(\| {re.escape(cell)} \| )`[^`]*`"
        text, count = re.subn(pattern, lambda m, names=names: f"{m[1]}`{' '.join(names)}`", text)
        if count != 1:
            raise SystemExit(f"docs/security.md has {count} rows '{cell}' and must have one")
    return text


def pages() -> dict[Path, str]:
    """Return the up-to-date content of each page."""
    columns = r"\| method \| title \|[^\n]*\n(?:\|[^\n]*\n)*"
    parts = {
        "pyproject.toml": (r"\[tool\.flwr\.app\.config\]\n(?:[^\n\[]+\n)*", keys()),
        "README.md": (r"\| family \| methods \|\n(?:\|[^\n]*\n)*", methods()),
        "docs/methods.md": (columns, markdown_table() + "\n"),
    }
    found = {}
    for name, (pattern, table) in parts.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        made, count = re.subn(pattern, lambda _, table=table: table, text)
        if count != 1:
            raise SystemExit(f"{name} has {count} tables like {pattern!r} and must have one")
        found[ROOT / name] = made
    page = ROOT / "docs" / "security.md"
    return {**found, page: security(page.read_text(encoding="utf-8"))}


def main() -> None:
    """Write the pages that differ, or with --check report them."""
    differing = {p: text for p, text in pages().items() if p.read_text(encoding="utf-8") != text}
    for path, text in differing.items():
        print(f"{path.relative_to(ROOT)} {'differs' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    sys.exit(1 if differing and "--check" in sys.argv else 0)


if __name__ == "__main__":
    main()
