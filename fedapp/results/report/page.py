"""The report's HTML: one template, one style sheet, and repeated elements.

The template is in Python because the bundle that Flower ships contains no .html files. The page
loads no external script, font or picture, and its content security policy forbids it. All text is
escaped with `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from fedapp.results.formatting import cell_text

STYLE_SHEET = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --card: #f6f8fa; --line: #d0d7de; --ink: #1f2328; --faint: #57606a;
  --good: #116329; --bad: #a40e26; --busy: #7a4d05;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #0d1117; --card: #161b22; --line: #30363d; --ink: #e6edf3; --faint: #9da7b1;
    --good: #56d364; --bad: #ff8f88; --busy: #e3b341;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 72rem; padding: 1.5rem 1rem 3rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.25rem; margin: 2.25rem 0 .75rem; }
p { margin: .5rem 0; }
.faint { color: var(--faint); }
.status { display: inline-block; font-weight: 600; padding: 0 .6rem; margin-right: .5rem;
  border: 1px solid currentColor; border-radius: 1rem; }
.completed { color: var(--good); } .failed { color: var(--bad); }
.interrupted, .unfinished { color: var(--busy); }
.reason { border-left: .25rem solid var(--bad); background: var(--card); padding: .5rem .75rem; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr));
  gap: .75rem; margin: 1rem 0 0; }
.numbers div { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .6rem .75rem; }
.numbers dt { color: var(--faint); font-size: .875rem; }
.numbers dd { margin: 0; font-size: 1.2rem; font-weight: 600; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 0 .75rem; align-items: start; }
.beside figure { margin-bottom: .75rem; }
figure { margin: 0; padding: .5rem; max-width: 40rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; }
figure svg { display: block; width: 100%; height: auto; stroke-linejoin: round;
  stroke-linecap: butt; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
.scroll:focus-visible, summary:focus-visible { outline: 3px solid #0072b2; outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; border-top: 1px solid var(--line); }
thead th { border-top: 0; background: var(--card); }
.rounds th, .rounds td { text-align: right; white-space: nowrap; }
.cells th, .cells td { white-space: nowrap; }
.cells td:first-child { white-space: normal; min-width: 9rem; }
.settings th { font-weight: 500; color: var(--faint); width: 14rem; }
@media (max-width: 30rem) { .settings th { width: 9rem; } }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem; white-space: pre-wrap; }
summary { cursor: pointer; padding: .5rem 0; font-weight: 600; }
"""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header>
<h1>$title</h1>
$lead
</header>
<main>
$sections
</main>
</body>
</html>
""")


def page(title: str, lead: str, sections: Iterable[str]) -> str:
    """Assemble the page from a plain-text title and pieces of HTML."""
    return PAGE.substitute(
        title=escape(title), style=STYLE_SHEET, lead=lead, sections="\n".join(sections)
    )


def section(heading: str, *content: str) -> str:
    """Return HTML elements under a second-level heading; "" if there are none."""
    body = "\n".join(piece for piece in content if piece)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>" if body else ""


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph of plain text; `kind` is a class of the style sheet."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def numbers(items: Iterable[tuple[str, str]]) -> str:
    """Show (label, text) pairs as a grid of large numbers."""
    cells = (f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in items)
    return f'<dl class="numbers">{"".join(cells)}</dl>'


def plot(svg: str) -> str:
    """Frame an SVG element."""
    return f"<figure>{svg}</figure>"


def side_by_side(*pieces: str) -> str:
    """Place HTML elements side by side if the screen is wide enough."""
    return f'<div class="beside">{"".join(pieces)}</div>' if any(pieces) else ""


def rounds_table(label: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of numbers that scrolls inside its own frame."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    table = f'<table class="rounds"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
    return _scrolling(label, table)


def table(label: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of words and numbers as a table with a column per key; None is a dash."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{escape(key.replace("_", " "))}</th>' for key in rows[0])
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell_text(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    content = f'<table class="cells"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
    return _scrolling(label, content)


def settings_table(label: str, items: Iterable[tuple[str, str]]) -> str:
    """Return (name, value) pairs as a two-column table."""
    rows = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in items
    )
    return _scrolling(label, f'<table class="settings"><tbody>\n{rows}</tbody></table>')


def details(summary: str, content: str) -> str:
    """Return HTML that is folded under a line of plain text."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def code(text: str) -> str:
    """Return a command as a code block."""
    return f"<pre><code>{escape(text)}</code></pre>"


def _scrolling(label: str, table: str) -> str:
    """Return a table in a frame that scrolls, also by keyboard, so that the page does not."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{table}</div>'
    )
