"""How a figure looks and how it becomes a PNG file or a part of an HTML page.

No pyplot: nothing global is touched and no display is asked for. Colours are those of Okabe and
Ito (2008), which are told apart with any colour vision. matplotlib's SVG files are written for
stand-alone use; `svg` makes one a citizen of a page: no fixed size, the page's fonts and text
colour (so it follows dark mode), a spoken label, and no address of any web site.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
OKABE_ITO = (BLUE, RED, GREEN, "#cc79a7", ORANGE, "#56b4e9")
_DASHES = ("-", "--", "-.", ":")
PAPER = "#ffffff"
INK = "#24292f"  # every letter and axis; a colour of its own, so that `svg` can find and replace it
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.15,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run `draw` under STYLE, leaving matplotlib's own settings alone."""

    @functools.wraps(draw)
    def run_styled(*args: P.args, **kwargs: P.kwargs) -> T:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return run_styled


def color_of(index: int) -> str:
    """Return the colour of the curve or bar of this index, again from the first after the last."""
    return OKABE_ITO[index % len(OKABE_ITO)]


def line_style(index: int) -> tuple[str, str]:
    """Return colour and dash of the curve of this index; those of 24 differ in one or the other."""
    lap = index // len(OKABE_ITO)  # each through the colours starts one dash later
    return color_of(index), _DASHES[(index + lap) % len(_DASHES)]


def class_colors(count: int) -> np.ndarray:
    """Return a colour for each of `count` classes: [count, 4], red, green, blue and opacity."""
    import matplotlib

    if count <= 10:
        return np.asarray(matplotlib.colormaps["tab10"](np.arange(count)))
    return np.asarray(matplotlib.colormaps["turbo"](np.linspace(0, 1, count)))


def plain_log_ticks(axis: Axis) -> None:
    """Write the powers of ten on a logarithmic axis as numbers: STYLE draws no formulas."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of this size in inches, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
def png(figure: Figure, dpi: int = 150) -> bytes:
    """Render a figure as PNG on white, `dpi` dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor=PAPER)
    return buffer.getvalue()


@styled
def svg(figure: Figure, label: str) -> str:
    """Render a figure as an SVG element for an HTML page, read out as `label`.

    Equal figures with equal labels give equal text; labels keep the ids of several figures on one
    page apart.
    """
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = label
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", facecolor="none", dpi=150)
    return _for_html(buffer.getvalue(), label)


def _for_html(text: str, label: str) -> str:
    """Keep the drawing of an SVG file; leave out prologue, namespaces, metadata and idle ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = text.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(|href=")#(\w+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)
    text = text.replace(INK, "currentColor")
    view_box = re.findall(r'viewBox="[^"]*"', text)[0]
    body = text[text.index(">") + 1 :].strip()
    return f'<svg role="img" aria-label="{escape(label)}" {view_box}>{body}'
