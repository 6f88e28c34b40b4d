"""The project's own files, for the tests that check rules on them."""

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
    """Return every file that is part of the project, or will be with the next commit.

    Git lists them. In a copy without git, such as an unpacked archive, the folders are walked.
    """
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if listed.returncode == 0:
            paths = {ROOT / name for name in listed.stdout.split("\0") if name}
            return sorted(path for path in paths if path.is_file())
    paths = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in NOT_SOURCE]
        paths += [Path(folder, name) for name in names]
    return sorted(paths)


def name_of(path: Path) -> str:
    """Return the path inside the project, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def texts() -> dict[str, str]:
    """Return the content of every text file of the project, by name."""
    contents = {}
    for path in project_files():
        try:
            contents[name_of(path)] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return contents


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax trees of the three packages' modules, by dotted name."""
    return {
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): ast.parse(text)
        for name, text in texts().items()
        if name.endswith(".py") and name.split("/")[0] in PACKAGES
    }
