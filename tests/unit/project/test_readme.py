"""What the README says is what the project does."""

import re
from pathlib import Path

import numpy as np
from in_process import federate, settings

from fedapp.cli.listing import markdown_table
from fedapp.methods.table import METHODS

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


def test_the_readme_and_the_methods_page_list_the_table():
    page = (ROOT / "docs" / "methods.md").read_text()
    for name in METHODS:
        assert f"| `{name}` |" in README
    assert markdown_table() in page
