"""What the files around the code promise: everything pinned, one version, one set-up for all.

No file may name the machine it was made on or a package registry: a clone must work anywhere, with
whatever index its user has.
"""

import os
import re
import tomllib

import pytest
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import filter_paths_for_publish
from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from project_tree import ROOT, texts

# Written in parts, or this very file would name them.
REGISTRY_HOSTS = [
    ".".join(parts)
    for parts in (
        ("py" + "pi", "org"),
        ("python" + "hosted", "org"),
        ("registry", "npm" + "js", "org"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
    )
]
BUILD_MACHINE = re.compile(r"(?<![\w.])/(?:work|farm)/|\.\./shared\b")
PERSONAL_FOLDER = re.compile(r"(?<![\w.])/(?:home|root|Users)/\w")
PINNED = re.compile(r"([a-z0-9][a-z0-9._-]*)==([^ ;]+)( ; [^#]+?)?( +--hash=sha256:[0-9a-f]{64})+")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads(read("pyproject.toml"))["project"]


def locked_lines() -> list[str]:
    """One line for each locked package, its hashes included, without comments."""
    joined = read("requirements.lock").replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.lstrip().startswith("#")]


def names_a_machine(name: str, text: str) -> bool:
    """True when `text` holds a path of the machine it was written on.

    Pages for people may show an example of a home folder, and images have a `/root` of their own.
    """
    example = name.endswith(".md") or name.startswith("docker/")
    return bool(BUILD_MACHINE.search(text) or (not example and PERSONAL_FOLDER.search(text)))


@pytest.mark.parametrize(
    "path", ["/wo" + "rk/main/x.py", "cd ../sha" + "red/data", "'/ho" + "me/ann/data'"]
)
def test_a_machine_path_is_seen(path):
    assert names_a_machine("fedapp/x.py", f"open({path})")


@pytest.mark.parametrize(
    "path", ["docs/work/plan", "https://example.org/home/page", "./root/x", "runs/work/"]
)
def test_a_relative_path_is_no_machine_path(path):
    assert not names_a_machine("fedapp/x.py", f"open({path})")


def test_no_file_names_the_machine_it_was_made_on():
    assert not [name for name, text in texts().items() if names_a_machine(name, text)]


def test_no_file_names_a_package_registry():
    assert not [
        (name, host) for name, text in texts().items() for host in REGISTRY_HOSTS if host in text
    ]


def test_every_locked_package_is_pinned_with_a_hash():
    lines = locked_lines()
    assert len(lines) > 50
    assert not [line[:80] for line in lines if not PINNED.fullmatch(line)]


def test_the_lock_file_leaves_the_index_to_the_user():
    text = read("requirements.lock")
    assert not re.search(r"://|--(extra-)?index-url|--find-links|^-", text, re.MULTILINE)
    assert text.splitlines()[1] == "#    make lock"


def test_the_lock_file_satisfies_pyproject_and_constraints(project):
    pins = dict(PINNED.fullmatch(line).group(1, 2) for line in locked_lines())
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"], "uv"]
    asked += [line for line in read("constraints.txt").splitlines() if not line.startswith("#")]
    for requirement in map(Requirement, asked):
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert pins["flwr"] == "1.39.0"


def test_one_version_everywhere(project):
    cited = re.search(r"^version: (\S+)$", read("CITATION.cff"), re.MULTILINE)
    newest = re.search(r"^## \[(\S+)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert cited.group(1) == newest.group(1) == project["version"]


def test_one_range_of_python_versions_everywhere(project):
    supported = SpecifierSet(project["requires-python"])
    versions = [f"3.{minor}" for minor in range(9, 20) if f"3.{minor}.1" in supported]
    assert re.findall(r'"(3\.\d+)"', read(".github/workflows/ci.yml")) == versions
    assert " | ".join(f"{version}.*" for version in versions) in read(".ci/setup.sh")


def test_continuous_integration_runs_the_readers_command():
    assert os.access(ROOT / ".ci/run", os.X_OK)
    assert read(".ci/run").rstrip().endswith("exec make test")
    assert "run: make test" in read(".github/workflows/ci.yml")


def test_flowers_hub_would_take_the_app():
    config, _ = load_and_validate(ROOT / "pyproject.toml", check_module=False)
    assert config["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert 0 < len(config["project"]["description"]) <= 200
    files = filter_paths_for_publish({name: ROOT / name for name in texts()})
    assert {"README.md", "LICENSE", "pyproject.toml"} <= set(files)
    sizes = [path.stat().st_size for path in files.values()]
    assert len(sizes) <= MAX_FILE_COUNT
    assert max(sizes) <= MAX_FILE_BYTES
    assert sum(sizes) <= MAX_TOTAL_BYTES
    for path in files.values():
        path.read_text(encoding="utf-8")
