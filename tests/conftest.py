"""What all tests share: folders of their own, one thread, and no two federations at a time."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Keep the tests that start Flower's processes on one worker: they share a SuperLink."""
    slow = {Path(__file__).parent / name for name in ("simulation", "deployment")}
    for item in items:
        if item.path.parent in slow:
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture(scope="session", autouse=True)
def data_cache(tmp_path_factory):
    """Point the data cache, of this process and its children, at a temporary folder."""
    os.environ["FEDAPP_CACHE"] = str(tmp_path_factory.mktemp("data-cache"))


@pytest.fixture(autouse=True)
def client_states(tmp_path, monkeypatch):
    """Let every test's clients keep their states in a folder of that test."""
    monkeypatch.setenv("FEDAPP_STATE", str(tmp_path / "client-states"))


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Let torch use one thread: on a busy machine, two wait for each other at every step."""
    import torch

    torch.set_num_threads(1)
