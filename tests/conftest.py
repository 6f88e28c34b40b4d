"""Decoded data sets are cached in a folder of the test session, not in the user's."""

import os

import pytest


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
