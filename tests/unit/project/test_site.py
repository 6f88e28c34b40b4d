"""The documentation builds as a site without a warning: pages are listed, links have a goal."""

import subprocess
import sys

from project_tree import ROOT

from fedapp.config.run_config import RunConfig


def test_the_site_builds_as_make_docs_does(tmp_path):
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    command += [str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text() for path in tmp_path.rglob("*.html")
    }
    assert "trains and compares" in pages["index.html"]
    assert "WorstClass" in pages["examples/own_callback.html"]
    assert "focal" in pages["examples/own_loss.html"]
    assert "data:image/png;base64" in pages["examples/first_steps.html"]
    assert all(f">{key}</span>" in pages["reference/keys.html"] for key in RunConfig().flat())
    commands = ("run", "reproduce", "state clean")
    assert all(f"fedapp {name}" in pages["reference/commands.html"] for name in commands)
    for name, text in pages.items():  # no page asks another host
        assert 'src="http' not in text, name
        assert '<link rel="stylesheet" type="text/css" href="http' not in text, name
