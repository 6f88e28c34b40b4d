"""One federation with two SuperNodes for tests that leave it whole, and a maker for the rest."""

import shutil
import subprocess
import sys

import pytest

from deployment.federation import ROOT, WARM, Federation
from fedapp.engines.launch import program


@pytest.fixture(scope="session")
def own_method(tmp_path_factory):
    """A folder with the example package `own_method` installed into it."""
    folder = tmp_path_factory.mktemp("own-method")
    source, site = folder / "source", folder / "site"
    shutil.copytree(ROOT / "examples" / "own_method", source, ignore=shutil.ignore_patterns("__*"))
    command = [program("uv"), "pip", "install", "--python", sys.executable, "--no-deps"]
    subprocess.run([*command, "--target", str(site), str(source)], check=True)
    return site


@pytest.fixture(scope="package")
def federation(tmp_path_factory, own_method):
    """A SuperLink and two registered SuperNodes with warm workers; a third has a key only.

    All their processes find the package `own_method`. They end with the folder's last test, since
    idle ones still ask for work, which takes processor time.
    """
    folder = tmp_path_factory.mktemp("federation")
    made = Federation(folder, nodes=3, poll="0.4", packages=own_method)
    try:
        made.start_superlink()
        made.register(0, 1)
        for number in range(2):
            made.start_node(number, config=WARM)
        yield made
    finally:
        made.stop()


@pytest.fixture
def new_federation(tmp_path):
    """A function that makes a federation with nothing started; it is stopped after the test."""
    made: list[Federation] = []

    def make(nodes: int = 2, **options: str) -> Federation:
        made.append(Federation(tmp_path, nodes, **options))
        return made[0]

    yield make
    for one in made:
        one.stop()
