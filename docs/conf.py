"""The documentation as a site: `make docs` builds site/ from docs/, the README and the examples.

Sphinx with the theme furo: kept by its authors, and links between pages are checked as it builds
(Material for MkDocs, which also reads Markdown, has announced its end).
"""

import json
import posixpath
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import reference_pages  # noqa: E402  (lies beside this file)

project = "fedapp"
html_title = "fedapp"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
html_theme = "furo"
highlight_language = "text"  # of blocks that name none: commands and output
smartquotes = False  # quotes in commands must stay as they are
html_show_copyright = html_show_sphinx = False
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "description"

# A page that begins with this comment is made of that file, which lies outside docs/.
MADE_OF = re.compile(r"<!-- The page is made of (\S+) -->\n")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def setup(app: Any) -> None:
    """Let Sphinx call us for every page that it reads."""
    app.connect("source-read", read_page)


def read_page(app: Any, name: str, source: list[str]) -> None:
    """Replace a page's text by that of the file that it is made of, and its links by the site's."""
    page, pages = f"docs/{name}.md", _pages()
    if name in reference_pages.PAGES:
        source[0] = reference_pages.PAGES[name]()
    elif made_of := MADE_OF.match(source[0]):
        file = _joined(page, made_of[1])
        text = linked(_markdown(ROOT / file), file, page, pages)
        source[0] = f"{text}\n\n{source[0][made_of.end() :]}"
    else:
        source[0] = linked(source[0], page, page, pages)


def linked(text: str, file: str, page: str, pages: dict[str, str]) -> str:
    """Return the Markdown of a file with its links to other files as seen from its page.

    A file that has no page of its own keeps its name only. Paths are relative to the repository;
    `pages` maps files to pages.
    """

    def replace(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, hash_, anchor = target.partition("#")
        if "://" in target or not path:
            return match[0]
        goal = _joined(file, path)
        goal = pages.get(goal, goal)
        if not goal.startswith("docs/") or not (ROOT / goal).is_file():
            return words
        return f"{mark}[{words}]({posixpath.relpath(goal, posixpath.dirname(page))}{hash_}{anchor})"

    return LINK.sub(replace, text)


@cache
def _pages() -> dict[str, str]:
    """Return the page of each file outside docs/ that has one."""
    found = {}
    for path in (ROOT / "docs").rglob("*.md"):
        page = path.relative_to(ROOT).as_posix()
        if made_of := MADE_OF.match(path.read_text(encoding="utf-8")):
            found[_joined(page, made_of[1])] = page
    return found


def _joined(file: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(file), path))


def _markdown(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return f"# {path.name}\n\n```python\n{text}```\n"
    if path.suffix == ".ipynb":
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _cell(cell))
    return text


def _cell(cell: dict[str, Any]) -> list[str]:
    """Return a notebook's cell as Markdown: its text or code, and the outputs that it had."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *filter(None, map(_output, cell["outputs"]))]


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        image = "".join(data["image/png"]).replace("\n", "")
        return f'<img alt="" src="data:image/png;base64,{image}">'
    text = "".join(output.get("text") or data.get("text/plain") or "")
    return f"```text\n{text}\n```" if text else ""
