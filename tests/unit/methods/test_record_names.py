"""A method's client and strategy use the same names for the records that they exchange."""

from importlib import import_module
from types import ModuleType

import pytest
from project_tree import modules

# Pairs of a strategy and a client whose files have different names.
PARTNERS = {
    "prototypes.rounds": "prototype_client",
    "prototypes.uploads": "prototype_client",
}
WITH_NAMES = {
    "prototypes.rounds": {"EXTRA"},
    "prototypes.uploads": {"PROTOTYPES", "CLASSES", "COUNTS"},
    "fedkd": {"EXTRA", "UPDATE"},
    "fedgen": {"EXTRA", "COUNTS", "LABELS", "MISSING_COUNTS"},
    "fedgh": {"EXTRA"},
    "fedcurv": {"IMPORTANCE", "WEIGHTED", "OF"},
    "scaffold": {"CONTROL"},
}


def names(module: ModuleType) -> dict[str, str]:
    """Return a module's public string constants."""
    strings = {name: value for name, value in vars(module).items() if isinstance(value, str)}
    return {name: value for name, value in strings.items() if name.isupper() and name[0] != "_"}


def halves() -> dict[str, str]:
    """Return the client module for every strategy module, without their packages."""
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
