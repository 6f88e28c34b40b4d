"""The project's own files, for the tests that hold them to the rules."""

import ast
import functools
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fedapp", "strategies", "clients")
NOT_SOURCE = {".git", ".venv", "runs", "dist", "build", "htmlcov", "__pycache__"} | {
    f".{tool}" for tool in ("farm", "pytest_cache", "mypy_cache", "ruff_cache", "hypothesis")
}


@functools.cache
def project_files() -> list[Path]:
    """Every file that is, or is about to be, part of the project.

    Git knows them best; a copy without git, such as an unpacked archive, is walked instead.
    """
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if listed.returncode == 0:
            paths = {ROOT / name for name in listed.stdout.split("\0") if name}
            return sorted(path for path in paths if path.is_file())
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_SOURCE]
        found += [Path(folder, name) for name in names]
    return sorted(found)


def name_of(path: Path) -> str:
    """The path inside the project, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def texts() -> dict[str, str]:
    """Content of every project file that is text, by name."""
    found = {}
    for path in project_files():
        try:
            found[name_of(path)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Syntax trees of the three packages, by dotted name."""
    return {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): ast.parse(text)
        for name, text in texts().items()
        if name.endswith(".py") and name.split("/")[0] in PACKAGES
    }
