"""The map of the house: files without circles, and imports inside functions only where they pay.

That each floor imports only those below it is a contract of import-linter (`make lint`).
"""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter

import pytest
from project_tree import modules
from test_source_rules import at_import, imported, imports_of, reachable

# Processes whose start a user waits for: there a module that loads a heavy library may be imported
# by the function that needs it.
QUICK_STARTS = re.compile(
    r"fedapp\.(cli\.\w+|client_app|engines\.simulation|engines\.deployment\.(doctor|warm_worker)"
    r"|experiments\.jobs)"
)
HEAVY = {"torch", "numpy", "pydantic", "flwr", "matplotlib", "cryptography"}


def arrows() -> dict[str, set[str]]:
    """The project's modules that each module imports: at its top, in functions and for types."""
    known = set(modules())
    found = {name: imported(ast.walk(tree), "") & known for name, tree in modules().items()}
    for name, targets in found.items():  # `from package import module` is an import of the module
        for target in list(targets):
            if any(other.startswith(f"{target}.") for other in targets):
                targets.discard(target)
        targets.discard(name)
    return found


def deferred(name: str) -> set[str]:
    """The project's modules that a module imports inside functions alone."""
    tree = modules()[name]
    at_once = imported(at_import(tree), "")
    for_types = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for node in ast.walk(test)
    }
    later = imported((n for n in ast.walk(tree) if n not in for_types), "")
    found = {each for each in later - at_once if each in modules() and each != name}
    return {each for each in found if not any(other.startswith(f"{each}.") for other in found)}


@functools.cache
def heavy_libraries(name: str) -> set[str]:
    """The heavy libraries that importing a module of the project loads, directly or not."""
    loaded = {each for m in reachable(name, lazily=False) for each in imports_of(m, lazily=False)}
    return {each.split(".")[0] for each in loaded} & HEAVY


def test_a_circle_is_found():
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"a"}}).prepare()


def test_there_is_no_circle_of_files():
    found = arrows()
    assert "clients.losses" in found["clients.training.objective"]
    TopologicalSorter(found).prepare()


def test_imports_inside_functions_are_those_that_a_quick_start_needs():
    found = {name: deferred(name) for name in modules()}
    assert found["fedapp.cli.run"], "the rule would see nothing"
    others = {n: late for n, late in found.items() if late and not QUICK_STARTS.fullmatch(n)}
    assert not others
    light = {
        f"{name}: {late}"
        for name, several in found.items()
        for late in several
        if not heavy_libraries(late)
    }
    assert not light


def test_the_promised_functions_are_where_users_import_them():
    from clients.losses import (
        cross_entropy,
        dot_regression,
        feature_distillation,
        knowledge_distillation,
        logit_distillation,
        moon_contrastive,
        not_true_distillation,
        proximal,
    )
    from fedapp.data.partition import dirichlet, iid, lda, pathological, shards
    from fedapp.methods import METHODS, Method
    from fedapp.models.heads import simplex_etf
    from strategies.aggregate import weighted_mean

    functions = [
        cross_entropy, dot_regression, feature_distillation, knowledge_distillation,
        logit_distillation, moon_contrastive, not_true_distillation, proximal, dirichlet, iid, lda,
        pathological, shards, simplex_etf, weighted_mean,
    ]  # fmt: skip
    assert all(callable(each) and each.__doc__ for each in functions)
    assert all(isinstance(row, Method) for row in METHODS.values())
