"""The documentation builds as a site without a warning: pages are listed, links have a goal."""

import subprocess
import sys

import pytest
from project_tree import ROOT

from fedapp.config.run_config import RunConfig


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site once, as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(folder)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_are_made_of_the_readme_and_the_examples(site):
    assert "Train and compare" in (site / "index.html").read_text()
    assert "WorstClass" in (site / "examples" / "own_callback.html").read_text()
    assert "data:image/png;base64" in (site / "examples" / "first_steps.html").read_text()


def test_the_reference_has_every_key_and_command(site):
    keys = (site / "reference" / "keys.html").read_text()
    assert all(f">{key}</span>" in keys for key in RunConfig().flat())
    commands = (site / "reference" / "commands.html").read_text()
    assert all(f"fedapp {name}" in commands for name in ("run", "reproduce", "state clean"))


def test_no_page_asks_another_host(site):
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert '<link rel="stylesheet" type="text/css" href="http' not in text, page
