"""The names of records that a method's two halves exchange: each types them, and they are equal."""

from importlib import import_module
from types import ModuleType

import pytest
from project_tree import modules

# Halves whose files have different names; the others are found by theirs.
PARTNERS = {
    "prototypes.rounds": "prototype_client",
    "prototypes.uploads": "prototype_client",
    "fedkd": "pair",
}
WITH_NAMES = {
    "prototypes.rounds": {"EXTRA"},
    "prototypes.uploads": {"PROTOTYPES", "CLASSES", "COUNTS"},
    "fedkd": {"EXTRA"},
    "fedgen": {"EXTRA", "COUNTS", "LABELS", "UNHEARD"},
    "fedgh": {"EXTRA"},
    "fedcurv": {"IMPORTANCE", "WEIGHTED", "OF"},
    "scaffold": {"CONTROL"},
}


def names(module: ModuleType) -> dict[str, str]:
    """Return a module's public constants that are strings; what a client calls INBOX is EXTRA."""
    found = {name: value for name, value in vars(module).items() if isinstance(value, str)}
    public = {name: value for name, value in found.items() if name.isupper() and name[0] != "_"}
    return {"EXTRA" if name == "INBOX" else name: value for name, value in public.items()}


def halves() -> dict[str, str]:
    """Return the modules of clients by those of strategies, without their packages."""
    there = {name.partition(".")[2] for name in modules() if name.startswith("strategies.")}
    same = {name: name for name in there if f"clients.{name}" in modules()}
    return same | PARTNERS


@pytest.mark.parametrize("half", sorted(halves()))
def test_both_halves_of_a_method_call_its_records_the_same(half):
    server = names(import_module(f"strategies.{half}"))
    client = names(import_module(f"clients.{halves()[half]}"))
    shared = server.keys() & client.keys()
    assert shared >= WITH_NAMES.get(half, set())
    assert {name: server[name] for name in shared} == {name: client[name] for name in shared}


def test_every_half_with_names_is_compared():
    assert WITH_NAMES.keys() <= halves().keys()
