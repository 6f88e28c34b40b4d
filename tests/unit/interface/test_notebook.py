"""The notebook in examples/ runs from its first cell to its last, and holds what that gave."""

import json
import re

import nbformat
import pytest
from nbclient import NotebookClient
from project_tree import ROOT

NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
MOST_BYTES = 150_000


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, 4)


def kinds(notebook) -> list[list[str]]:
    """What each code cell left: streams, and the formats of its result."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        [each.get("name") or ",".join(sorted(each.data)) for each in cell.outputs] for cell in cells
    ]


def words(notebook) -> list[list[str]]:
    """What each code cell printed, without numbers and device: another machine has others."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    texts = [" ".join(each.get("text", "") for each in cell.outputs) for cell in cells]
    texts = [re.sub(r"device \w+", "", text) for text in texts]
    return [re.findall(r"[a-z]+", text, re.IGNORECASE) for text in texts]


def test_the_notebook_runs_and_shows_what_it_holds(notebook, tmp_path):
    stored, printed = kinds(notebook), words(notebook)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, coalesce_streams=True, resources=place).execute()
    assert kinds(notebook) == stored
    assert words(notebook) == printed
    assert "stdout" in stored[0]
    assert ["image/png,text/plain"] in stored
    assert "round 1/6  accuracy" in notebook.cells[1].outputs[0].text
    assert str(tmp_path) not in json.dumps(notebook)


def test_the_notebook_is_small_and_names_no_folder_of_a_machine(notebook):
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    texts = [json.dumps({**cell, "id": ""}) for cell in notebook.cells]
    assert not [text for text in texts if "/tmp/" in text or str(ROOT) in text]
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
