"""Files of a user's own that add rows to the tables."""

import os

import pytest

from fedapp.config import extensions


@pytest.fixture
def named(monkeypatch, tmp_path):
    """Name a file with some content in FEDAPP_EXTENSIONS; the tables are restored afterwards."""
    monkeypatch.setenv("FEDAPP_EXTENSIONS", "")
    tables = {kind: dict(table) for kind, (table, _) in extensions._TABLES.items()}

    def name(content, file="mine.py"):
        path = tmp_path / file
        path.write_text(content)
        os.environ["FEDAPP_EXTENSIONS"] = str(path)
        return path

    yield name
    for kind, (table, _) in extensions._TABLES.items():
        table.clear()
        table.update(tables[kind])
