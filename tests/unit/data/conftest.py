"""Fixtures of the tests of data."""

from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """The folder of this test's own data cache, which does not exist yet."""
    monkeypatch.setenv("FEDAPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
