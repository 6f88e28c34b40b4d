"""What the README says is what the project does."""

import importlib.util
import re
from pathlib import Path

import numpy as np
from in_process import federate, settings

from clients.training.objective import BASE_LOSSES, REGULARISERS
from fedapp.methods.table import METHODS
from fedapp.models.heads import HEADS

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def test_the_example_adds_a_method_in_one_entry():
    code = re.search(r"<!-- example: a method in one entry -->\n```python\n(.*?)```", README, re.S)
    assert code is not None
    try:
        exec(code[1], {})
        final, strategy, _ = federate(settings(method="fedfn+fd"))
    finally:
        METHODS.pop("fedfn+fd", None)
    assert np.isfinite(strategy.report.train_loss)
    assert "head.weight" in final
    assert "head.bias" not in final


def test_every_head_loss_and_regulariser_has_its_formula():
    page = (ROOT / "docs" / "methods.md").read_text()
    section = page.partition("## Formulas\n")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([\w-]+)`", section, re.MULTILINE)
    assert sorted(names) == sorted([*HEADS, *BASE_LOSSES, *REGULARISERS])


def test_the_generated_tables_are_up_to_date():
    """`make tables` writes the tables of methods and the keys in pyproject.toml."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    pages = generate.pages()
    assert {path.name for path in pages} == {
        "pyproject.toml",
        "README.md",
        "methods.md",
        "security.md",
    }
    assert all(f"`{name}`" in pages[ROOT / "README.md"] for name in METHODS)
    stale = [path.name for path, text in pages.items() if path.read_text() != text]
    assert not stale, "run `make tables`"
