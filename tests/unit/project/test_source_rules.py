"""The architecture and the style bars, checked on the syntax trees of the three packages.

Both erode one small exception at a time, so each rule is a test: sizes, the direction of imports,
methods as rows rather than branches, one code path for simulation and deployment, quick workers.
Every rule is a small function that is first tried on samples which keep and break it.
"""

import ast
import functools
import importlib.util
import re
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest
from project_tree import PACKAGES, modules, texts

SLOW_TO_IMPORT = {"torchvision", "matplotlib", "sklearn", "scipy", "PIL", "pandas"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run on import of a module: no function bodies, nothing for type checkers."""
    yield node
    typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    if not isinstance(node, Function | ast.Lambda) and not typing_only:
        for child in ast.iter_child_nodes(node):
            yield from at_import(child)


def imported(nodes: Iterable[ast.AST], package: str) -> set[str]:
    """Dotted names that import statements load or bind: `from a import b` gives a and a.b."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(relative, package) if node.level else relative
            names |= {origin} | {f"{origin}.{alias.name}" for alias in node.names}
    return names


def against_the_arrows(tree: ast.Module, package: str) -> set[str]:
    """Packages of the project that a module of `strategies` or `clients` wrongly imports."""
    roots = {name.split(".")[0] for name in imported(ast.walk(tree), package)}
    return roots & (set(PACKAGES) - {package})


def slow_imports(tree: ast.Module) -> set[str]:
    """Libraries that cost a worker seconds and are loaded as soon as this module is imported."""
    return {name.split(".")[0] for name in imported(at_import(tree), "")} & SLOW_TO_IMPORT


def function_lengths(tree: ast.Module) -> dict[str, int]:
    """Lines of every function by name, the docstring included."""
    found = [node for node in ast.walk(tree) if isinstance(node, Function)]
    return {f"{node.name}, line {node.lineno}": node.end_lineno - node.lineno + 1 for node in found}


def words(expression: ast.AST) -> set[str]:
    """Lower-case words of the identifiers and strings in an expression."""
    names = [
        getattr(n, field, "") for n in ast.walk(expression) for field in ("id", "attr", "value")
    ]
    split = (re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", n) for n in names if isinstance(n, str))
    return {word.lower() for found in split for word in found}


def conditions(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression that decides what runs next."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.Match):
            yield node.subject


def simulation_branches(tree: ast.Module) -> list[int]:
    """Lines that decide by whether the app is simulated."""
    return [
        test.lineno
        for test in conditions(tree)
        if any(word == "ray" or word.startswith("simulat") for word in words(test))
    ]


def is_method_name(side: ast.expr) -> bool:
    """True for `method`, `config.method`, `row["method"]` and `method_id`."""
    return re.search(r"\bmethod(_id|_name|'\])?$", ast.unparse(side)) is not None


def is_text(side: ast.expr) -> bool:
    """True for a string, or a tuple, set or list that holds one."""
    parts = side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side]
    return any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts)


def method_branches(tree: ast.Module) -> list[int]:
    """Lines that compare a method's id with a literal: that belongs in the method's row."""
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match) and is_method_name(node.subject):
            lines.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_method_name, sides)) and any(map(is_text, sides)):
                lines.append(node.lineno)
    return lines


@functools.cache
def imports_of(name: str, *, lazily: bool) -> frozenset[str]:
    """Dotted names that a module of the project imports; `lazily`: in functions too."""
    tree = modules()[name]
    nodes = ast.walk(tree) if lazily else at_import(tree)
    return frozenset(imported(nodes, name.rpartition(".")[0]))


def reachable(start: str, *, lazily: bool) -> set[str]:
    """Project modules that `start` imports, directly or not; `lazily`: in functions too."""
    seen: set[str] = set()
    todo = {start} & set(modules())
    while todo:
        name = todo.pop()
        seen.add(name)
        found = imports_of(name, lazily=lazily) | {name.rpartition(".")[0]}
        todo |= (found & set(modules())) - seen
    return seen


@pytest.mark.parametrize(
    "source",
    [
        "import fedapp.core.rng",
        "def f():\n    from fedapp import rng",
        "from clients.losses import proximal",
        "import torch, clients",
    ],
)
def test_an_import_against_the_arrows_is_seen(source):
    assert against_the_arrows(ast.parse(source), "strategies")


@pytest.mark.parametrize(
    "source",
    [
        "from strategies import aggregate",
        "from .records import pack",
        "from flwr.clients import fedapp",
    ],
)
def test_an_import_along_the_arrows_is_allowed(source):
    assert not against_the_arrows(ast.parse(source), "strategies")


@pytest.mark.parametrize(
    "source",
    [
        "if context.is_simulation: pass",
        "x = 1 if 'ray' in loaded else 2",
        "[c for c in nodes if isSimulated(c)]",
    ],
)
def test_asking_for_the_simulation_is_seen(source):
    assert simulation_branches(ast.parse(source)) == [1]


def test_an_array_and_a_comment_are_no_simulation():
    assert not simulation_branches(
        ast.parse("if array.any():  # also in a simulation\n    f('ray')")
    )


@pytest.mark.parametrize(
    "source",
    [
        "if method == 'fedfn': pass",
        "x = config.method != 'fedavg'",
        "y = row['method'] in ('dr', 'feddr+')",
        "match method_id:\n  case _: pass",
    ],
)
def test_a_branch_on_the_method_is_seen(source):
    assert method_branches(ast.parse(source)) == [1]


@pytest.mark.parametrize(
    "source",
    ["if row.method == wanted: pass", "x = method in METHODS", "if kind == 'method': pass"],
)
def test_looking_a_method_up_is_allowed(source):
    assert not method_branches(ast.parse(source))


def test_a_slow_import_is_seen_only_where_a_worker_pays_for_it():
    assert slow_imports(ast.parse("import torchvision.datasets")) == {"torchvision"}
    assert not slow_imports(
        ast.parse("if TYPE_CHECKING:\n    import PIL\ndef f():\n    import PIL")
    )


def test_function_lengths_include_the_docstring():
    assert function_lengths(ast.parse('def f():\n    """a\n    b\n    """\n')) == {"f, line 1": 4}


def test_strategies_and_clients_know_neither_each_other_nor_the_app():
    broken = {
        name: found
        for name, tree in modules().items()
        if not name.startswith("fedapp") and (found := against_the_arrows(tree, name.split(".")[0]))
    }
    assert not broken


def test_methods_are_rows_not_branches():
    trees = {name: tree for name, tree in modules().items() if name != "fedapp.methods.table"}
    assert not {name: lines for name, tree in trees.items() if (lines := method_branches(tree))}


@pytest.mark.parametrize("app", ["fedapp.client_app", "fedapp.server_app"])
def test_nothing_that_runs_inside_flower_asks_whether_it_is_simulated(app):
    inside = reachable(app, lazily=True)
    assert {app, "fedapp", "fedapp.config.run_config"} <= inside
    assert not {name: lines for name in inside if (lines := simulation_branches(modules()[name]))}


def test_a_worker_starts_without_slow_libraries():
    loaded = reachable("fedapp.runtime.node.messages", lazily=False)
    assert not {name: found for name in loaded if (found := slow_imports(modules()[name]))}


def test_a_message_for_the_warm_worker_starts_without_torch():
    modules = "sys, fedapp.client_app, fedapp.engines.deployment.warm"
    before = f"import {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", before], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_no_file_is_longer_than_300_lines():
    lengths = {name: text.count("\n") for name, text in texts().items() if name.endswith(".py")}
    assert not {name: lines for name, lines in lengths.items() if lines > 300}


def test_no_function_is_longer_than_40_lines_and_most_fit_in_12():
    lengths = {
        f"{name}: {function}": lines
        for name, tree in modules().items()
        for function, lines in function_lengths(tree).items()
    }
    assert not {name: lines for name, lines in lengths.items() if lines > 40}
    assert statistics.median(lengths.values()) <= 12
